"""HERON-SFL's surrogate: the loss of a small auxiliary head on z, trained with the bottom.

L(v, theta) = l(h(f_ZO(x; v); theta), y) (appendix A.2). The head h is the model's own final norm
and unembedding behind a low-rank adapter, z -> z + (alpha / r) B A z. B starts at zero: the head
is then exactly the top of a model cut behind its last block. With ``blocks`` = n, copies of the n
blocks above the boundary come first, each with LoRA matrices of its own. All of it is perturbed,
moved and replayed with the bottom; the saved adapter leaves it out.
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
from hofl.models.adapters import SurrogateParameters, copied_name
from hofl.models.split import BlockInputs

NAMES = ("auxiliary.A", "auxiliary.B")


class AuxiliaryHead(Surrogate):
    """Final norm and unembedding behind a trainable low-rank adapter.

    Args:
        rank: r.
        alpha: scale of the adapter times r.
        blocks: n, copied from above the boundary.
    """

    def __init__(self, rank: int = 8, alpha: float = 16.0, blocks: int = 0) -> None:
        if type(rank) is not int or not 1 <= rank <= 4096:
            raise HoflError(f"rank must be an integer in 1..4096, got {rank!r:.40}.")
        if type(alpha) not in (int, float) or not 0 < alpha <= 1e6:
            raise HoflError(f"alpha must lie in (0, 1e6], got {alpha!r:.40}.")
        if type(blocks) is not int or not 0 <= blocks <= 4096:
            raise HoflError(f"blocks must be an integer from 0 on, got {blocks!r:.40}.")
        self._rank, self._scale, self._blocks = rank, alpha / rank, blocks

    def parameters(self, config: Any) -> SurrogateParameters:
        """Return A [r, D], uniform in +-1/sqrt(D), and B [D, r], zero; the copies' come later."""
        width = config.get_text_config().hidden_size
        shapes = (self._rank, width), (width, self._rank)
        bound = 1.0 / sqrt(width)
        draw = generator(0, Purpose.ADAPTER).uniform(-bound, bound, self._rank * width)
        zeros = torch.zeros(self._rank * width, device="cpu")  # a device may be set around
        start = torch.cat([torch.from_numpy(draw).float(), zeros])
        return SurrogateParameters(NAMES, shapes, start, self._blocks)

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        """Run the top for its own gradient, and the head at the anchor."""
        if not site.model.layout.surrogate:
            raise HoflError("this model was built without the parameters of the auxiliary head.")
        room = site.model.num_blocks - site.boundary
        if self._blocks > room:
            raise HoflError(
                f"a head of {self._blocks} blocks does not fit above boundary {site.boundary}: "
                f"set method.surrogate.blocks to at most {room}."
            )
        loss, top_gradient, _ = top.gradients(z, to_boundary=False)
        inputs = site.model.inputs(batch.texts) if self._blocks else None
        head = BatchHead(site, batch, self._scale, inputs, self._blocks)
        values = stream_values(site, site.model.layout.surrogate, [ANCHOR])
        anchor = {name: stacked[0] for name, stacked in values.items()}
        return _Judged(loss.item(), top_gradient, None, head, z, anchor, head.loss(z, anchor))


@dataclass(frozen=True)
class BatchHead:
    """The head of a step on one batch, with any values of its parameters.

    Args:
        site: model and boundary.
        batch: says which scores are needed, and the loss.
        scale: alpha / r.
        inputs: of the copied blocks.
        blocks: n.
    """

    site: Site
    batch: Batch
    scale: float
    inputs: BlockInputs | None = None
    blocks: int = 0

    @torch.no_grad()
    def loss(self, z: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Return the loss at z [1, tokens, D]."""
        model = self.site.model
        for i in range(self.blocks):
            assert self.inputs is not None
            prefix = copied_name(i, "")
            head_values = {
                n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)
            }
            z = model.block(self.site.boundary + i, z, self.inputs, head_values)
        a, b = (values[name] for name in NAMES)
        added = (z.to(a.dtype) @ a.T) @ b.T
        return model.loss(z + (self.scale * added).to(z.dtype), self.batch)


@dataclass(frozen=True)
class _Judged(Feedback):
    head: BatchHead
    z: Tensor
    anchor: dict[str, Tensor]
    at_anchor: Tensor

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        site = self.head.site
        values = stream_values(site, site.model.layout.surrogate, [stream])
        head_values = {name: stacked[0] for name, stacked in values.items()}
        return self.head.loss(moved, head_values) - self.at_anchor

    @torch.no_grad()
    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        site = self.head.site
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            head_values = {
                c.name: forward_ad.make_dual(self.anchor[c.name], direction_at(site, stream.j, c))
                for c in site.model.layout.surrogate
            }
            loss = self.head.loss(forward_ad.make_dual(self.z, tangent), head_values)
            return forward_ad.unpack_dual(loss).tangent.clone()
