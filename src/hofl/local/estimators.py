"""Directional derivatives of the surrogate along u_j, Eq. (6): three ways behind one interface.

An estimator first probes the bottom (which needs no gradient of the loss); given the top's
feedback, it turns the probe into the q scalars s_j. Its entry is in ``hofl.rules``.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hofl.local.site import Site
from hofl.local.streams import ANCHOR, Stream, direction_at, joint_pass
from hofl.local.surrogates import Feedback
from hofl.models.split import BlockInputs


@dataclass(frozen=True)
class Probe:
    """The bottom's output at the anchor and along every stream.

    Args:
        z: the anchor's boundary activation [1, tokens, D].
        streams: where else the bottom was run.
        points: each stream's moved activation, or its tangent, [1, tokens, D].
    """

    z: Tensor
    streams: tuple[Stream, ...]
    points: tuple[Tensor, ...]


class Estimator(Protocol):
    """An estimate of directional derivatives along q directions."""

    def probe(self, site: Site, inputs: BlockInputs, num_directions: int) -> Probe:
        """Run the anchor and all streams that the estimate needs."""
        ...

    def scalars(self, probe: Probe, feedback: Feedback) -> Tensor:
        """Return the scalars s [q], float32 on the CPU."""
        ...

    def recheck(self, site: Site, inputs: BlockInputs, feedback: Feedback) -> float | None:
        """Return s_1 at twice the radius, to measure its error; None when the estimate is exact."""
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

    def probe(self, site: Site, inputs: BlockInputs, num_directions: int) -> Probe:
        """Send anchor and perturbed streams through the bottom in one joint pass."""
        streams = tuple(
            Stream(j, offset * self.radius)
            for j in range(num_directions)
            for offset in self.offsets
        )
        z, *moved = joint_pass(site, inputs, [ANCHOR, *streams])
        return Probe(z, streams, tuple(moved))

    def scalars(self, probe: Probe, feedback: Feedback) -> Tensor:
        """Return differences over the radius, [q]."""
        return self._differences(probe.streams, probe.points, feedback, self.radius)

    def recheck(self, site: Site, inputs: BlockInputs, feedback: Feedback) -> float:
        """Return s_1 at 2 mu; the anchor is known, so only the moved streams run."""
        streams = tuple(Stream(0, 2 * offset * self.radius) for offset in self.offsets)
        moved = tuple(joint_pass(site, inputs, streams))
        return self._differences(streams, moved, feedback, 2 * self.radius).item()

    def _differences(
        self,
        streams: tuple[Stream, ...],
        moved: tuple[Tensor, ...],
        feedback: Feedback,
        radius: float,
    ) -> Tensor:
        pairs = zip(moved, streams, strict=True)
        changes = torch.stack([feedback.change(z, stream).cpu() for z, stream in pairs])  # [q * m]
        weights = torch.tensor(self.weights, dtype=changes.dtype) / radius  # [m]
        return (changes.view(-1, len(weights)) * weights).sum(1).float()  # [q]


class ForwardMode:
    """s_j = exact directional derivative by forward-mode differentiation; there is no mu."""

    def __init__(self, radius: float = 0.0) -> None:
        """Take the rule's radius, as every estimator does, and ignore it."""

    def probe(self, site: Site, inputs: BlockInputs, num_directions: int) -> Probe:
        """Run one dual-number pass through the bottom per direction."""
        streams = tuple(Stream(j, 1.0) for j in range(num_directions))
        passes = [_dual_pass(site, inputs, stream.j) for stream in streams]
        return Probe(passes[0][0], streams, tuple(tangent for _, tangent in passes))

    def scalars(self, probe: Probe, feedback: Feedback) -> Tensor:
        """Return slopes along the tangents, [q]."""
        pairs = zip(probe.points, probe.streams, strict=True)
        return torch.stack([feedback.slope(t, stream).cpu() for t, stream in pairs]).float()

    def recheck(self, site: Site, inputs: BlockInputs, feedback: Feedback) -> None:
        """Return None: there is no radius."""
        return None


@torch.no_grad()
def _dual_pass(site: Site, inputs: BlockInputs, j: int) -> tuple[Tensor, Tensor]:
    """Return z_0 and its derivative along u_j, both [1, tokens, D]."""
    model = site.model
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
    """Make the paper's estimator: [L(w + mu u) - L(w)] / mu."""
    return FiniteDifference(radius, offsets=(1.0,), weights=(1.0,))


def central_difference(radius: float) -> FiniteDifference:
    """Make [L(w + mu u) - L(w - mu u)] / (2 mu): one more stream per direction, error O(mu^2)."""
    return FiniteDifference(radius, offsets=(1.0, -1.0), weights=(0.5, -0.5))
