"""The top segment on one batch: loss and gradients as functions of the boundary activation.

``Top`` is a seam: the local step takes a function that opens one, so the blocks above the boundary
may run on this machine (:class:`LocalTop`) or on another.

Backpropagation goes in segments of blocks, with the activations of one segment at a time. This is
gradient checkpointing: only the input of each segment is kept; when the backward pass gets there,
the segment runs again, this time with a graph. The operations are those of an undivided pass, so
the gradients are equal. Written out here rather than through ``torch.utils.checkpoint``: of nested
saved-tensor hooks torch applies only the innermost, and those of ``models.precision`` would hide
the block's activations from the checkpoint's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.local.site import Site

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.models.split import BlockInputs, SplitModel


class Gradients(NamedTuple):
    """The value that was differentiated, its gradient [n] and, if asked for, that of the entry."""

    value: Tensor
    flat: Tensor
    delta: Tensor | None


class Top(Protocol):
    """Blocks b..L-1 and the head on one batch."""

    def loss(self, z: Tensor) -> Tensor:
        """Return the batch's loss at z [1, tokens, D]."""
        ...

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        """Return loss, g_FO [d_FO], and with ``to_boundary`` delta [1, tokens, D]."""
        ...


OpenTop = Callable[[Site, Batch, "BlockInputs"], Top]
"""Opens the top for a part of a step's batch: here, with the bottom's inputs, or elsewhere."""


@dataclass(frozen=True)
class LocalTop:
    """The top on this machine.

    Args:
        model: the split model, at its current parameters.
        inputs: what the blocks get beside the hidden state.
        batch: says which scores are needed, and the loss.
        boundary: b.
        segment: blocks whose activations are alive at a time; 0 is all of them.
    """

    model: "SplitModel"
    inputs: "BlockInputs"
    batch: Batch
    boundary: int
    segment: int = 0

    @classmethod
    def open(cls, site: Site, batch: Batch, inputs: "BlockInputs") -> Top:
        """Open the top of a step's model on one part of its batch."""
        return cls(site.model, inputs, batch, site.boundary, site.execution.checkpoint)

    def loss(self, z: Tensor) -> Tensor:
        """Run blocks and head forward."""
        model = self.model
        last = model.forward(z, self.inputs, self.boundary, model.num_blocks)
        return model.loss(last, self.batch)

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        """Differentiate the last segment and the head at once; the segments below run twice."""
        blocks = self.model.num_blocks
        *pieces, last = cut(self.boundary, blocks, self.segment) or [range(blocks, blocks)]
        entries = enter(self.model, z, self.inputs, pieces)
        loss, flat, delta = self.model.differentiate(
            entries.pop(), self.inputs, last, self.batch, to_entry=to_boundary or bool(pieces)
        )
        if not pieces:
            return Gradients(loss, flat, delta)
        assert delta is not None
        below, delta = pull_back(
            self.model, self.inputs, pieces, entries, delta, to_entry=to_boundary
        )
        return Gradients(loss, torch.cat([*below, flat]), delta)


def cut(start: int, stop: int, size: int) -> list[range]:
    """Cut blocks start..stop-1 into segments of ``size`` blocks, the last one shorter; 0 is one.

    >>> cut(1, 6, 2)
    [range(1, 3), range(3, 5), range(5, 6)]
    """
    step = size or max(1, stop - start)
    return [range(first, min(first + step, stop)) for first in range(start, stop, step)]


@torch.no_grad()
def enter(
    model: "SplitModel", z: Tensor, inputs: "BlockInputs", pieces: list[range]
) -> list[Tensor]:
    """Return every segment's input, and the last one's output: n + 1 tensors [1, tokens, D]."""
    entries = [z]
    for piece in pieces:
        entries.append(model.forward(entries[-1], inputs, piece.start, piece.stop))
    return entries


def pull_back(
    model: "SplitModel",
    inputs: "BlockInputs",
    pieces: list[range],
    entries: list[Tensor],
    delta: Tensor,
    *,
    to_entry: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """Backpropagate delta from behind the last segment to the first; uses up ``entries``.

    Returns:
        The gradient of each segment's parameters in block order, and with ``to_entry`` the delta
        before the first.
    """
    gradients: list[Tensor] = []
    below: Tensor | None = delta
    for number, piece in reversed(list(enumerate(pieces))):
        assert below is not None, "only the first segment may go without"
        _, flat, below = model.differentiate(
            entries.pop(), inputs, piece, below, to_entry=to_entry or number > 0
        )
        gradients.append(flat)
    return gradients[::-1], below
