"""What the bottom segment minimises: local surrogates L(v) of the loss (appendix A.2).

A surrogate is a function (top, z) -> :class:`Feedback`. It runs the top segment once, gives the
first-order gradient of the top, and measures how L changes when the boundary activation moves. To
add one, write such a function and list it in ``SURROGATES``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hofl.local.top import Top


@dataclass(frozen=True)
class Feedback:
    """What the top segment tells the bottom.

    Args:
        loss: the batch's loss at the anchor.
        top_gradient: g_FO, [d_FO].
        change: z -> L(z) - L(z_0), a float64 or float32 scalar tensor.
        slope: tangent of z -> derivative of L along it.
        delta: gradient of the loss at the boundary [B, T, D], or None when not computed.
    """

    loss: float
    top_gradient: Tensor
    change: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    delta: Tensor | None = None


Surrogate = Callable[[Top, Tensor], Feedback]


def linear(top: Top, z: Tensor) -> Feedback:
    """L(v) = <delta, f_ZO(x; v)>, Eq. (4): HO-SFL's and HO-FL's surrogate.

    The difference z_j - z_0 is taken before the inner product, so L(w) itself costs nothing and
    nothing cancels.
    """
    loss, top_gradient, delta = top.gradients(z, to_boundary=True)
    assert delta is not None
    anchor = z.detach()
    return Feedback(
        loss=loss.item(),
        top_gradient=top_gradient,
        change=lambda moved: inner(delta, moved - anchor),
        slope=lambda tangent: inner(delta, tangent),
        delta=delta,
    )


def end_to_end(top: Top, z: Tensor) -> Feedback:
    """L(v) = loss of the whole network at v: HOSL's surrogate, and that of pure ZO methods."""
    feedback = top_only(top, z)

    @torch.no_grad()
    def change(moved: Tensor) -> Tensor:
        return top.loss(moved) - feedback.loss

    @torch.no_grad()
    def slope(tangent: Tensor) -> Tensor:
        # The fused attention kernels have no forward-mode rule; the plain one does.
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            moved = top.loss(forward_ad.make_dual(z, tangent))
            return forward_ad.unpack_dual(moved).tangent.clone()

    return Feedback(feedback.loss, feedback.top_gradient, change, slope)


def top_only(top: Top, z: Tensor) -> Feedback:
    """No surrogate: the top's gradient alone, for bottoms that are frozen or empty."""
    loss, top_gradient, _ = top.gradients(z, to_boundary=False)

    def undefined(_moved: Tensor) -> Tensor:
        raise AssertionError("a bottom without a surrogate has no scalars")

    return Feedback(loss.item(), top_gradient, undefined, undefined)


SURROGATES: dict[str, Surrogate] = {
    "linear": linear,
    "end-to-end": end_to_end,
    "none": top_only,
}


def inner(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> accumulated in float64 (float32 on devices that have no float64)."""
    product = a.float().mul(b.float())
    return product.sum(dtype=torch.float32 if a.device.type == "mps" else torch.float64)
