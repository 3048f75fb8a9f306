"""Bottom rules: how the blocks below the boundary learn.

- ``zeroth-order`` (the paper): q scalars per step; the server rebuilds the rest.
- ``frozen`` (the control): the bottom stays as it is.
- ``recompute``: exact gradients, segments re-run one at a time; the whole difference is uploaded.

To add a rule, write a class with ``forward`` and list it in ``BOTTOM_RULES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hofl.directions import combine
from hofl.local.estimators import ESTIMATORS, Estimator
from hofl.local.segments import cut, enter, pull_back
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.messages import LocalRule
from hofl.privacy import Privacy


@dataclass(frozen=True)
class Evidence:
    """What a pass of the bottom tells of its gradient; the evidence of a batch's parts adds up.

    Args:
        values: scalars [q], or an exact gradient [d_ZO], or nothing.
        again: s_1 at twice the radius, where the estimate is judged; one value or none.
    """

    values: Tensor
    again: Tensor

    def scaled(self, share: float) -> "Evidence":
        """The evidence of a part, weighted by its share of the batch."""
        return Evidence(self.values * share, self.again * share)

    def plus(self, other: "Evidence") -> "Evidence":
        """Two parts together."""
        return Evidence(self.values + other.values, self.again + other.again)

    def released(self, privacy: Privacy) -> "Evidence":
        """Scalars as they may be used and sent; what judges them is not."""
        return Evidence(privacy.scalars(self.values), _NOTHING)


@dataclass(frozen=True)
class BottomGradient:
    """The bottom's gradient [d_ZO], the scalars it was built from [q], and their error check."""

    gradient: Tensor | None
    scalars: Tensor
    checks: int = 0
    signal: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class BottomPass:
    """A finished forward pass of the bottom: z, and its evidence once delta is known."""

    z: Tensor
    evidence: Callable[[Feedback], Evidence]


class BottomRule(Protocol):
    """One way for the bottom segment to learn."""

    def forward(self, site: Site) -> BottomPass:
        """Run the bottom without keeping activations."""
        ...

    def gradient(self, site: Site, total: Evidence) -> BottomGradient:
        """The gradient that a whole batch's evidence stands for."""
        ...


_NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class ZerothOrder:
    """g_ZO = (1/q) sum_j s_j u_j, Eq. (6)."""

    estimator: Estimator
    num_directions: int

    def forward(self, site: Site) -> BottomPass:
        """Probe along q directions; on the first step also judge the estimate's error."""
        probe = self.estimator.probe(site, self.num_directions)

        def evidence(feedback: Feedback) -> Evidence:
            # Judged once per participation: at 2 mu rounding error halves and truncation error at
            # least doubles, so where the two estimates differ one of them is not the derivative.
            again = self.estimator.recheck(site, feedback) if site.step == 0 else None
            return Evidence(
                probe.scalars(feedback), _NOTHING if again is None else torch.tensor([again])
            )

        return BottomPass(probe.z, evidence)

    def gradient(self, site: Site, total: Evidence) -> BottomGradient:
        """Directions regenerated and combined, as the server will do it."""
        s, layout = total.values, site.model.layout
        g = torch.empty(layout.cut(site.boundary))
        combine(s.numpy(), site.key, site.step, layout, site.boundary, out=g.numpy())
        g = g.to(site.model.device)
        if not len(total.again):
            return BottomGradient(g, s)
        first, again = s[0].item(), total.again.item()
        return BottomGradient(g, s, checks=1, signal=first**2, noise=(first - again) ** 2)


@dataclass(frozen=True)
class Frozen:
    """The bottom is only run, never changed."""

    @torch.no_grad()
    def forward(self, site: Site) -> BottomPass:
        """One plain forward pass."""
        inputs = site.model.inputs(site.input_ids)
        z = site.model.forward(inputs.hidden, inputs, 0, site.boundary)
        return BottomPass(z, lambda _feedback: Evidence(_NOTHING, _NOTHING))

    def gradient(self, site: Site, total: Evidence) -> BottomGradient:
        """None."""
        return BottomGradient(None, _NOTHING)


@dataclass(frozen=True)
class Recompute:
    """Exact bottom gradients: keep each segment's input, re-run segments from the boundary down."""

    def forward(self, site: Site) -> BottomPass:
        """Run the bottom, keeping one [B, T, D] tensor per segment (of one block by default)."""
        model = site.model
        inputs = model.inputs(site.input_ids)
        pieces = cut(0, site.boundary, site.execution.checkpoint or 1)
        entries = enter(model, inputs.hidden, inputs, pieces)
        z = entries.pop()

        def evidence(feedback: Feedback) -> Evidence:
            delta = feedback.delta
            assert delta is not None, "recompute needs a surrogate that gives delta"
            found, _ = pull_back(model, inputs, pieces, entries, delta, to_entry=False)
            return Evidence(torch.cat(found) if found else _NOTHING, _NOTHING)

        return BottomPass(z, evidence)

    def gradient(self, site: Site, total: Evidence) -> BottomGradient:
        """The evidence is the gradient."""
        return BottomGradient(total.values if len(total.values) else None, _NOTHING)


BOTTOM_RULES: dict[str, Callable[[LocalRule], BottomRule]] = {
    "zeroth-order": lambda rule: ZerothOrder(ESTIMATORS[rule.estimator](rule.mu), rule.q),
    "frozen": lambda rule: Frozen(),
    "recompute": lambda rule: Recompute(),
}
