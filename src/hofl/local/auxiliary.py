"""HERON-SFL's surrogate: the loss of a small auxiliary head on z, trained with the bottom.

L(v, theta) = l(h(f_ZO(x; v); theta), y) (appendix A.2). The head h is the model's own final norm
and unembedding behind a low-rank adapter, z -> z + (alpha / r) B A z. B starts at zero: the head
is then exactly the top of a model cut behind its last block. A and B are perturbed, moved and
replayed with the bottom; the saved adapter leaves them out.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator
from hofl.local.site import Site
from hofl.local.streams import ANCHOR, Stream, direction_at, stream_values
from hofl.local.surrogates import Feedback, Surrogate
from hofl.local.top import Top
from hofl.models.adapters import SurrogateParameters

NAMES = ("auxiliary.A", "auxiliary.B")


class AuxiliaryHead(Surrogate):
    """Final norm and unembedding behind a trainable low-rank adapter.

    Args:
        rank: r.
        alpha: scale of the adapter times r.
    """

    def __init__(self, rank: int = 8, alpha: float = 16.0) -> None:
        if type(rank) is not int or not 1 <= rank <= 4096:
            raise HoflError(f"rank must be an integer in 1..4096, got {rank!r:.40}.")
        if type(alpha) not in (int, float) or not 0 < alpha <= 1e6:
            raise HoflError(f"alpha must lie in (0, 1e6], got {alpha!r:.40}.")
        self._rank, self._scale = rank, alpha / rank

    def parameters(self, config: Any) -> SurrogateParameters:
        """Return A [r, D], uniform in +-1/sqrt(D), and B [D, r], zero."""
        width = config.get_text_config().hidden_size
        shapes = (self._rank, width), (width, self._rank)
        bound = 1.0 / sqrt(width)
        draw = generator(0, Purpose.ADAPTER).uniform(-bound, bound, self._rank * width)
        start = torch.cat([torch.from_numpy(draw).float(), torch.zeros(self._rank * width)])
        return SurrogateParameters(NAMES, shapes, start)

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top for its own gradient, and the head at the anchor."""
        if not site.model.layout.surrogate:
            raise HoflError("this model was built without the parameters of the auxiliary head.")
        loss, top_gradient, _ = top.gradients(z, to_boundary=False)
        values = stream_values(site, site.model.layout.surrogate, [ANCHOR])
        anchor = {name: stacked[0] for name, stacked in values.items()}
        at_anchor = head_loss(site, batch, z, anchor, self._scale)
        return _Judged(
            loss.item(), top_gradient, None, site, batch, z, anchor, at_anchor, self._scale
        )


@torch.no_grad()
def head_loss(
    site: Site, batch: Batch, z: Tensor, values: dict[str, Tensor], scale: float
) -> Tensor:
    """Return the head's loss at z [1, tokens, D] with these A and B."""
    a, b = (values[name] for name in NAMES)
    added = (z.to(a.dtype) @ a.T) @ b.T
    return site.model.loss(z + (scale * added).to(z.dtype), batch)


@dataclass(frozen=True)
class _Judged(Feedback):
    site: Site
    batch: Batch
    z: Tensor
    anchor: dict[str, Tensor]
    at_anchor: Tensor
    scale: float

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        values = stream_values(self.site, self.site.model.layout.surrogate, [stream])
        own = {name: stacked[0] for name, stacked in values.items()}
        return head_loss(self.site, self.batch, moved, own, self.scale) - self.at_anchor

    @torch.no_grad()
    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        layout = self.site.model.layout
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            own = {
                c.name: forward_ad.make_dual(
                    self.anchor[c.name], direction_at(self.site, stream.j, c)
                )
                for c in layout.surrogate
            }
            z = forward_ad.make_dual(self.z, tangent)
            loss = head_loss(self.site, self.batch, z, own, self.scale)
            return forward_ad.unpack_dual(loss).tangent.clone()
