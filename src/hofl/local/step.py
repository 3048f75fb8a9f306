"""The gradients of one local step, from one batch or from the parts it is cut into.

Parts (micro-batches) bound the memory of a step and spare padding. The loss is a mean over terms,
so loss, gradients and scalars of the whole batch are the parts' weighted sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from hofl.batch import Batch, shares
from hofl.local.execution import PLAIN, Execution
from hofl.local.site import Site
from hofl.local.top import Top
from hofl.messages import RoundPlan

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.local.bottom import BottomGradient, BottomRule, Evidence
    from hofl.local.surrogates import Surrogate
    from hofl.models.split import SplitModel


@dataclass(frozen=True)
class StepGradients:
    """Loss and gradients of both segments at the anchor.

    Args:
        loss: of the batch.
        top: g_FO, [d_FO].
        bottom: g_ZO and the scalars it was built from.
        examples: B.
    """

    loss: float
    top: Tensor
    bottom: "BottomGradient"
    examples: int


def hybrid_gradients(
    model: "SplitModel",
    plan: RoundPlan,
    step: int,
    parts: Sequence[Batch],
    bottom: "BottomRule",
    surrogate: "Surrogate",
    execution: Execution = PLAIN,
) -> StepGradients:
    """g_FO by backpropagation and g_ZO from q scalars, Eqs. (3)-(6), both at the anchor w^e."""
    loss, top, evidence = 0.0, None, None
    for share, part in zip(shares(parts), parts, strict=True):
        site = Site(model, part.input_ids, plan.boundary, plan.key, step, execution)
        part_loss, part_top, found = _part(site, part, bottom, surrogate)
        loss += share * part_loss
        top = part_top.mul_(share) if top is None else top.add_(part_top, alpha=share)
        del part_top  # not to be held through the next part
        evidence = found.scaled(share) if evidence is None else evidence.plus(found.scaled(share))
    assert top is not None, "a step needs at least one part"
    assert evidence is not None
    examples = sum(part.examples for part in parts)
    if plan.privacy is not None and plan.scalars_shape(model.layout)[1]:
        evidence = evidence.released(plan.privacy)
    return StepGradients(loss, top, bottom.gradient(site, evidence), examples)


def _part(
    site: Site, part: Batch, bottom: "BottomRule", surrogate: "Surrogate"
) -> tuple[float, Tensor, "Evidence"]:
    """One part by itself: when this returns, its activations are gone."""
    forward = bottom.forward(site)  # z, no graph
    inputs = site.model.inputs(part.input_ids)
    top = Top(site.model, inputs, part, site.boundary, site.execution.checkpoint)
    feedback = surrogate(top, forward.z)  # g_FO, delta
    return feedback.loss, feedback.top_gradient, forward.evidence(feedback)
