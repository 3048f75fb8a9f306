"""Directional derivatives of the surrogate along u_j, Eq. (6): three ways behind one interface.

An estimator first probes the bottom (no gradient of the loss is needed for that) and later, when
the top has spoken, turns the probes into the q scalars s_j. To add one, list it in ``ESTIMATORS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hofl.local.site import Site
from hofl.local.streams import ANCHOR, Stream, direction_at, joint_pass
from hofl.local.surrogates import Feedback


@dataclass(frozen=True)
class Probe:
    """Outcome of probing the bottom.

    Args:
        z: the anchor's boundary activation [B, T, D].
        scalars: feedback -> s [q], float32 on the CPU.
    """

    z: Tensor
    scalars: Callable[[Feedback], Tensor]


class Estimator(Protocol):
    """Probes the bottom along q directions."""

    def probe(self, site: Site, num_directions: int) -> Probe:
        """Run the anchor and whatever else the estimate needs."""
        ...

    def recheck(self, site: Site, feedback: Feedback) -> float | None:
        """s_1 again at twice the radius, to judge its error by; None when the estimate is exact."""
        ...


@dataclass(frozen=True)
class FiniteDifference:
    """s_j = sum_m weight_m [L(w + offset_m mu u_j) - L(w)] / mu.

    Forward difference (the paper): offsets (1,), weights (1,). Central: (1, -1), (1/2, -1/2).

    Args:
        radius: mu.
        offsets: where to evaluate, in units of mu.
        weights: coefficient of each evaluation, in units of 1 / mu.
    """

    radius: float
    offsets: tuple[float, ...]
    weights: tuple[float, ...]

    def probe(self, site: Site, num_directions: int) -> Probe:
        """Anchor and perturbed streams through the bottom in one joint pass."""
        moves = [
            Stream(j, offset * self.radius)
            for j in range(num_directions)
            for offset in self.offsets
        ]
        z, *moved = joint_pass(site, [ANCHOR, *moves])

        return Probe(z, lambda feedback: self._scalars(feedback, moved, self.radius))

    def recheck(self, site: Site, feedback: Feedback) -> float:
        """s_1 at 2 mu. The anchor is known, so only the moved streams run."""
        streams = [Stream(0, 2 * offset * self.radius) for offset in self.offsets]
        moved = joint_pass(site, streams)
        return self._scalars(feedback, moved, 2 * self.radius).item()

    def _scalars(self, feedback: Feedback, moved: list[Tensor], radius: float) -> Tensor:
        changes = torch.stack([feedback.change(point).cpu() for point in moved])  # [q * m]
        weights = torch.tensor(self.weights, dtype=changes.dtype) / radius  # [m]
        return (changes.view(-1, len(weights)) * weights).sum(1).float()  # [q]


@dataclass(frozen=True)
class ForwardMode:
    """s_j = exact directional derivative by forward-mode differentiation; there is no mu."""

    def probe(self, site: Site, num_directions: int) -> Probe:
        """One dual-number pass through the bottom per direction."""
        passes = [_dual_pass(site, j) for j in range(num_directions)]
        tangents = [tangent for _, tangent in passes]

        def scalars(feedback: Feedback) -> Tensor:
            return torch.stack([feedback.slope(tangent).cpu() for tangent in tangents]).float()

        return Probe(passes[0][0], scalars)

    def recheck(self, site: Site, feedback: Feedback) -> None:
        """Nothing to judge: there is no radius."""
        return None


@torch.no_grad()
def _dual_pass(site: Site, j: int) -> tuple[Tensor, Tensor]:
    """z_0 and its derivative along u_j, both [B, T, D]."""
    model = site.model
    inputs = model.inputs(site.input_ids)
    hidden = inputs.hidden
    # The fused attention kernels have no forward-mode rule; the plain one does.
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        for index in range(site.boundary):
            values = {}
            for c in model.layout.by_block[index]:
                anchor = model.w[c.start : c.stop].view(c.shape)
                tangent = direction_at(site, j, c)
                values[c.name] = forward_ad.make_dual(anchor, tangent)
            hidden = model.block(index, hidden, inputs, values)
        z, tangent = forward_ad.unpack_dual(hidden)
        return z.clone(), torch.zeros_like(z) if tangent is None else tangent.clone()


def forward_difference(radius: float) -> FiniteDifference:
    """The paper's estimator: [L(w + mu u) - L(w)] / mu."""
    return FiniteDifference(radius, offsets=(1.0,), weights=(1.0,))


def central_difference(radius: float) -> FiniteDifference:
    """[L(w + mu u) - L(w - mu u)] / (2 mu): one more stream per direction, error O(mu^2)."""
    return FiniteDifference(radius, offsets=(1.0, -1.0), weights=(0.5, -0.5))


ESTIMATORS: dict[str, Callable[[float], Estimator]] = {
    "forward": forward_difference,
    "central": central_difference,
    "forward-mode": lambda _radius: ForwardMode(),
}
