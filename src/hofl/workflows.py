"""Workflows: who holds which segment, and how often clients and server exchange what. No torch.

In HO-FL's own workflow every client holds the whole model and answers once per round. In a split
one (``hofl split``) clients hold the bottom and the server holds the top, so activations travel in
every step. A method names its workflow as it names its other parts.
"""

from dataclasses import dataclass

from hofl.core.parts import Maker, Part


@dataclass(frozen=True, kw_only=True)
class WorkflowTraits:
    """What is known of a workflow without running it.

    Args:
        make: ``(rule, **options) -> Workflow`` (``hofl.twoparty.setting``); None for HO-FL's own.
        summary: who does what, for people.
        averages_weights: the clients' weights travel, once per round each way.
    """

    make: Maker | None
    summary: str
    averages_weights: bool = False


WORKFLOWS: dict[str, WorkflowTraits] = {
    "whole-model": WorkflowTraits(
        make=None, summary="every client holds the whole model and answers once per round"
    ),
    "shared-steps": WorkflowTraits(
        make="hofl.twoparty.shared:shared_steps",
        summary="scalars are averaged in every step; all clients hold the same bottom",
    ),
    "local-steps": WorkflowTraits(
        make="hofl.twoparty.alone:local_steps",
        summary="clients train bottom and head alone for E steps; their weights are averaged",
        averages_weights=True,
    ),
}
WHOLE_MODEL = Part("whole-model")
