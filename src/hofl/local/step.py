"""The gradients of one local step, from one batch or from the parts it is cut into.

Parts (micro-batches) bound the memory of a step. The loss is a mean over terms,
so loss, gradients and scalars of the whole batch are the parts' weighted sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from hofl.core.batch import Batch, shares
from hofl.core.privacy import Privacy
from hofl.local.site import Site
from hofl.local.top import LocalTop, OpenTop

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.local.bottom import BottomRule, Evidence
    from hofl.local.surrogates import Surrogate
    from hofl.rules import LocalRule


@dataclass(frozen=True)
class LocalParts:
    """What a client runs for a rule: how the bottom learns, what it minimises, where the top is."""

    bottom: "BottomRule"
    surrogate: "Surrogate"
    open_top: OpenTop = LocalTop.open

    @classmethod
    def of(cls, rule: "LocalRule", boundary: int) -> "LocalParts":
        """Make the parts that a rule names; an empty bottom needs neither of them."""
        from hofl.local import bottom, surrogates
        from hofl.rules import SURROGATES

        rule.check()
        if boundary == 0:
            return cls(bottom.Frozen(rule), surrogates.TopOnly())
        surrogate = rule.surrogate.made_by(SURROGATES[rule.surrogate.name].make)
        return cls(rule.bottom.made_by(rule.traits.make, rule), surrogate)


@dataclass(frozen=True)
class StepGradients:
    """Loss and gradients of both segments at the anchor.

    Args:
        loss: of the batch.
        top: g_FO, [d_FO].
        bottom: g_ZO, [d_ZO]; None when the bottom does not move.
        scalars: s [q] that g_ZO was built from, or [0].
        error: s_1 at mu minus s_1 at 2 mu; None where not measured.
        examples: B.
    """

    loss: float
    top: Tensor
    bottom: Tensor | None
    scalars: Tensor
    error: float | None
    examples: int


def hybrid_gradients(
    site: Site, batch: Sequence[Batch], parts: LocalParts, privacy: Privacy | None = None
) -> StepGradients:
    """Return g_FO by backpropagation and g_ZO from q scalars, Eqs. (3)-(6), at the anchor w^e.

    Args:
        site: the step's model, boundary and directions.
        batch: its batch, in one part or several.
        parts: bottom rule, surrogate and top.
        privacy: how scalars are protected before they are used.
    """
    loss, top, evidence = 0.0, None, None
    for share, part in zip(shares(batch), batch, strict=True):
        part_loss, part_top, part_evidence = _part_gradients(site, part, parts)
        loss += share * part_loss
        top = part_top.mul_(share) if top is None else top.add_(part_top, alpha=share)
        del part_top  # free it before the next part
        scaled = part_evidence.scaled(share)
        evidence = scaled if evidence is None else evidence.plus(scaled)
    assert top is not None, "a step needs at least one part"
    assert evidence is not None
    if privacy is not None and len(evidence.scalars):
        evidence = evidence.released(privacy)
    rechecked = len(evidence.again) > 0
    error = evidence.scalars[0].item() - evidence.again.item() if rechecked else None
    examples = sum(part.examples for part in batch)
    gradient = parts.bottom.gradient(site, evidence)
    return StepGradients(loss, top, gradient, evidence.scalars, error, examples)


def _part_gradients(site: Site, part: Batch, parts: LocalParts) -> tuple[float, Tensor, "Evidence"]:
    """Return a part's loss, g_FO and evidence; its activations are freed on return."""
    inputs = site.model.inputs(part.texts)
    forward = parts.bottom.forward(site, inputs)  # z, no graph
    top = parts.open_top(site, part, inputs)
    feedback = parts.surrogate(site, part, top, forward.z)  # g_FO, delta
    return feedback.loss, feedback.top_gradient, forward.evidence(feedback)
