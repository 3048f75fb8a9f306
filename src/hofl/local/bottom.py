"""Bottom rules: how the blocks below the boundary learn.

- ``zeroth-order`` (the paper): q scalars per step; the server rebuilds the rest.
- ``frozen`` (the control): the bottom stays as it is.
- ``recompute``: exact gradients, blocks re-run one at a time; the whole difference is uploaded.

To add a rule, write a class with ``forward`` and list it in ``BOTTOM_RULES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hofl.directions import combine
from hofl.local.estimators import ESTIMATORS, Estimator
from hofl.local.site import Site
from hofl.local.surrogates import Feedback
from hofl.messages import LocalRule


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
    """A finished forward pass of the bottom: z, and its gradient once delta is known."""

    z: Tensor
    gradient: Callable[[Feedback], BottomGradient]


class BottomRule(Protocol):
    """One way for the bottom segment to learn."""

    def forward(self, site: Site) -> BottomPass:
        """Run the bottom without keeping activations."""
        ...


@dataclass(frozen=True)
class ZerothOrder:
    """g_ZO = (1/q) sum_j s_j u_j, Eq. (6)."""

    estimator: Estimator
    num_directions: int

    def forward(self, site: Site) -> BottomPass:
        """Probe along q directions; on the first step also judge the estimate's error."""
        probe = self.estimator.probe(site, self.num_directions)

        def gradient(feedback: Feedback) -> BottomGradient:
            s = probe.scalars(feedback)
            layout = site.model.layout
            g = torch.empty(layout.cut(site.boundary))
            combine(s.numpy(), site.key, site.step, layout, site.boundary, out=g.numpy())
            checks, signal, noise = 0, 0.0, 0.0
            # Judged once per participation: at 2 mu rounding error halves and truncation error at
            # least doubles, so where the two estimates differ one of them is not the derivative.
            if site.step == 0:
                again = self.estimator.recheck(site, feedback)
                if again is not None:
                    checks, signal, noise = 1, s[0].item() ** 2, (s[0].item() - again) ** 2
            return BottomGradient(g.to(site.model.device), s, checks, signal, noise)

        return BottomPass(probe.z, gradient)


@dataclass(frozen=True)
class Frozen:
    """The bottom is only run, never changed."""

    @torch.no_grad()
    def forward(self, site: Site) -> BottomPass:
        """One plain forward pass."""
        inputs = site.model.inputs(site.input_ids)
        z = site.model.forward(inputs.hidden, inputs, 0, site.boundary)
        return BottomPass(z, lambda _feedback: BottomGradient(None, torch.zeros(0)))


@dataclass(frozen=True)
class Recompute:
    """Exact bottom gradients: keep each block's input, re-run blocks from the boundary down."""

    @torch.no_grad()
    def forward(self, site: Site) -> BottomPass:
        """Run the bottom, keeping one [B, T, D] tensor per block."""
        model, boundary = site.model, site.boundary
        inputs = model.inputs(site.input_ids)
        entries = [inputs.hidden]
        for index in range(boundary):
            entries.append(model.block(index, entries[-1], inputs))
        z = entries.pop()

        def gradient(feedback: Feedback) -> BottomGradient:
            delta = feedback.delta
            assert delta is not None, "recompute needs a surrogate that gives delta"
            pieces: list[Tensor] = []
            for index in reversed(range(boundary)):
                entry = entries.pop().requires_grad_()
                values = [model.parameter(c) for c in model.layout.by_block[index]]
                with torch.enable_grad():
                    output = model.block(index, entry, inputs)
                *grads, delta = torch.autograd.grad(output, [*values, entry], delta)
                pieces = [grad.reshape(-1) for grad in grads] + pieces
            return BottomGradient(torch.cat(pieces) if pieces else None, torch.zeros(0))

        return BottomPass(z, gradient)


BOTTOM_RULES: dict[str, Callable[[LocalRule], BottomRule]] = {
    "zeroth-order": lambda rule: ZerothOrder(ESTIMATORS[rule.estimator](rule.mu), rule.q),
    "frozen": lambda rule: Frozen(),
    "recompute": lambda rule: Recompute(),
}
