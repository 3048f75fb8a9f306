"""Bottom rules: how the blocks below the boundary learn.

- ``zeroth-order`` (the paper): q scalars per step; the server rebuilds the rest.
- ``zeroth-order-vector``: the same estimate, uploaded as a whole difference (FedZO).
- ``frozen`` (the control): the bottom is not trained.
- ``recompute``: exact gradients, segments re-run one at a time; the whole difference is uploaded.

A bottom rule is a class made from the local rule and its options, and one entry in ``hofl.rules``,
which states what it sends and needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hofl.core.privacy import Privacy
from hofl.local.estimators import Estimator, Probe
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.local.top import cut, enter, pull_back
from hofl.rules import ESTIMATORS, LocalRule

if TYPE_CHECKING:
    from hofl.models.split import BlockInputs

_NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class Evidence:
    """What a pass of the bottom says about its gradient; the evidence of a batch's parts adds up.

    Args:
        scalars: s [q], or [0] where none are sent.
        gradient: an exact gradient [d_ZO], or [0].
        again: s_1 at twice the radius, [1] where the estimate's error is measured, else [0].
    """

    scalars: Tensor = _NOTHING
    gradient: Tensor = _NOTHING
    again: Tensor = _NOTHING

    def scaled(self, share: float) -> "Evidence":
        """Weight by a part's share of the batch."""
        return Evidence(self.scalars * share, self.gradient * share, self.again * share)

    def plus(self, other: "Evidence") -> "Evidence":
        """Add another part's evidence."""
        return Evidence(
            self.scalars + other.scalars,
            self.gradient + other.gradient,
            self.again + other.again,
        )

    def released(self, privacy: Privacy) -> "Evidence":
        """Protect the scalars for use and sending; drop ``again``, which is not released."""
        return Evidence(privacy.scalars(self.scalars), self.gradient)


class BottomPass(Protocol):
    """A finished forward pass of the bottom."""

    @property
    def z(self) -> Tensor:
        """The boundary activation [1, tokens, D]."""
        ...

    def evidence(self, feedback: Feedback) -> Evidence:
        """Return what the pass says about the bottom's gradient, given the top's feedback."""
        ...


class BottomRule(Protocol):
    """One way for the bottom segment to learn."""

    def forward(self, site: Site, inputs: "BlockInputs") -> BottomPass:
        """Run the bottom on embedded texts without keeping activations."""
        ...

    def gradient(self, site: Site, total: Evidence) -> Tensor | None:
        """Return the gradient [d_ZO] from a whole batch's evidence; None for no update."""
        ...


class ZerothOrder:
    """g_ZO = (1/q) sum_j s_j u_j, Eq. (6)."""

    def __init__(self, rule: LocalRule) -> None:
        maker = ESTIMATORS[rule.estimator.name].make
        self.estimator: Estimator = rule.estimator.made_by(maker, rule.mu)
        self._num_directions = rule.q

    def forward(self, site: Site, inputs: "BlockInputs") -> BottomPass:
        """Probe along q directions."""
        probe = self.estimator.probe(site, inputs, self._num_directions)
        return _Probed(site, inputs, self.estimator, probe)

    def gradient(self, site: Site, total: Evidence) -> Tensor:
        """Regenerate and combine the directions, as the server will."""
        g = torch.empty(site.model.layout.cut(site.boundary))
        site.directions.combine(total.scalars.numpy(), site.step, site.boundary, out=g.numpy())
        return g.to(site.model.device)


@dataclass(frozen=True)
class _Probed:
    site: Site
    inputs: "BlockInputs"
    estimator: Estimator
    probe: Probe

    @property
    def z(self) -> Tensor:
        return self.probe.z

    def evidence(self, feedback: Feedback) -> Evidence:
        """Return the scalars; on the first step also s_1 at 2 mu.

        The error is measured once per participation: at 2 mu rounding error halves and truncation
        error at least doubles, so if the two estimates differ, one of them is not the derivative.
        """
        again = None
        if self.site.step == 0:
            again = self.estimator.recheck(self.site, self.inputs, feedback)
        return Evidence(
            scalars=self.estimator.scalars(self.probe, feedback),
            again=_NOTHING if again is None else torch.tensor([again]),
        )


class SentWhole(ZerothOrder):
    """The same estimate as a gradient: nothing is replayed, the difference is uploaded whole."""

    def forward(self, site: Site, inputs: "BlockInputs") -> BottomPass:
        """Probe along q directions."""
        probe = self.estimator.probe(site, inputs, self._num_directions)
        return _Combined(site, self.estimator, probe, super().gradient)

    def gradient(self, site: Site, total: Evidence) -> Tensor:
        """Return the evidence's gradient."""
        return total.gradient


@dataclass(frozen=True)
class _Combined:
    site: Site
    estimator: Estimator
    probe: Probe
    combine: Callable[[Site, Evidence], Tensor]

    @property
    def z(self) -> Tensor:
        return self.probe.z

    def evidence(self, feedback: Feedback) -> Evidence:
        scalars = Evidence(scalars=self.estimator.scalars(self.probe, feedback))
        return Evidence(gradient=self.combine(self.site, scalars))


class Frozen:
    """A bottom that is run but not trained."""

    def __init__(self, rule: LocalRule) -> None:
        """Take the rule, as every bottom rule does, and ignore it."""

    @torch.no_grad()
    def forward(self, site: Site, inputs: "BlockInputs") -> BottomPass:
        """Run one plain forward pass."""
        return _Plain(site.model.forward(inputs.hidden, inputs, 0, site.boundary))

    def gradient(self, site: Site, total: Evidence) -> None:
        """Return None: the bottom does not move."""
        return None


@dataclass(frozen=True)
class _Plain:
    z: Tensor

    def evidence(self, feedback: Feedback) -> Evidence:
        return Evidence()


class Recompute:
    """Exact bottom gradients: keep each segment's input, re-run segments from the boundary down."""

    def __init__(self, rule: LocalRule) -> None:
        """Take the rule, as every bottom rule does, and ignore it."""

    def forward(self, site: Site, inputs: "BlockInputs") -> BottomPass:
        """Run the bottom, keeping one [1, tokens, D] tensor per segment (one block by default)."""
        pieces = cut(0, site.boundary, site.execution.checkpoint or 1)
        entries = enter(site.model, inputs.hidden, inputs, pieces)
        z = entries.pop()
        return _Entered(z, site, inputs, pieces, entries)

    def gradient(self, site: Site, total: Evidence) -> Tensor | None:
        """Return the evidence's gradient."""
        return total.gradient if len(total.gradient) else None


@dataclass(frozen=True)
class _Entered:
    z: Tensor
    site: Site
    inputs: "BlockInputs"
    pieces: list[range]
    entries: list[Tensor]

    def evidence(self, feedback: Feedback) -> Evidence:
        delta, model = feedback.delta, self.site.model
        assert delta is not None, "the rule's traits demand a surrogate that gives delta"
        flat, _ = pull_back(model, self.inputs, self.pieces, self.entries, delta, to_entry=False)
        surrogate = torch.zeros(model.layout.cut(0), device=model.device)  # not trained exactly
        return Evidence(gradient=torch.cat([surrogate, *flat]) if flat else _NOTHING)
