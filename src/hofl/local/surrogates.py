"""What the bottom segment minimises: local surrogates L(v) of the loss (appendix A.2).

A surrogate is made from its options. Called with a step's site, a part of its batch, the top and z
it runs the top once, for the top's first-order gradient, and returns a :class:`Feedback` that
measures how L changes in a stream of the bottom. It may own trainable parameters, such as an
auxiliary head: they are part of every bottom (b > 0), perturbed, trained and replayed with
it. Its entry is in ``hofl.rules``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hofl.core.batch import Batch
from hofl.local.site import Site
from hofl.local.streams import Stream
from hofl.local.top import Top
from hofl.models.adapters import SurrogateParameters


@dataclass(frozen=True)
class Feedback:
    """What the top segment reports to the bottom; subclasses measure how L changes.

    Args:
        loss: the batch's loss at the anchor.
        top_gradient: g_FO, [d_FO].
        delta: gradient of the loss at the boundary [1, tokens, D], or None when not computed.
    """

    loss: float
    top_gradient: Tensor
    delta: Tensor | None

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        """Return L at a stream's z [1, tokens, D] minus L at the anchor, float64 or float32."""
        raise AssertionError("a bottom without a surrogate has no scalars")

    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        """Return the derivative of L along a stream whose z moves by ``tangent`` [1, tokens, D]."""
        raise AssertionError("a bottom without a surrogate has no scalars")


class Surrogate(ABC):
    """Base of all surrogates; by default without trainable parameters."""

    def parameters(self, config: Any) -> SurrogateParameters | None:
        """Return its trainable parameters for a model of this Hugging Face configuration."""
        return None

    @abstractmethod
    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top at z [1, tokens, D]."""


class TopOnly(Surrogate):
    """No surrogate: the top's gradient alone, for bottoms that are frozen or empty."""

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top, without the gradient at the boundary."""
        loss, top_gradient, _ = top.gradients(z, to_boundary=False)
        return Feedback(loss.item(), top_gradient, None)


@dataclass(frozen=True)
class _LinearFeedback(Feedback):
    """The difference z_j - z_0 is taken before the inner product: nothing cancels."""

    delta: Tensor
    anchor: Tensor

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        return inner(self.delta, moved - self.anchor)

    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        return inner(self.delta, tangent)


class Linear(Surrogate):
    """L(v) = <delta, f_ZO(x; v)>, Eq. (4): HO-SFL's and HO-FL's surrogate.

    L(w) itself costs nothing: only differences from the anchor are ever needed.
    """

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top down to the boundary."""
        loss, top_gradient, delta = top.gradients(z, to_boundary=True)
        assert delta is not None
        return _LinearFeedback(loss.item(), top_gradient, delta, z.detach())


@dataclass(frozen=True)
class _EndToEndFeedback(Feedback):
    top: Top
    anchor: Tensor

    @torch.no_grad()
    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        return self.top.loss(moved) - self.loss

    @torch.no_grad()
    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        # The fused attention kernels have no forward-mode rule; the plain one does.
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            moved = self.top.loss(forward_ad.make_dual(self.anchor, tangent))
            return forward_ad.unpack_dual(moved).tangent.clone()


class EndToEnd(Surrogate):
    """L(v) = loss of the whole network at v: HOSL's surrogate, and that of pure ZO methods."""

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top, without the gradient at the boundary."""
        loss, top_gradient, _ = top.gradients(z, to_boundary=False)
        return _EndToEndFeedback(loss.item(), top_gradient, None, top, z)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return <a, b> accumulated in float64 (float32 on devices that have no float64)."""
    product = a.float().mul(b.float())
    return product.sum(dtype=torch.float32 if a.device.type == "mps" else torch.float64)
