"""Backpropagation in segments of blocks: the activations of one segment at a time.

This is gradient checkpointing. Only the input of each segment is kept; when the backward pass gets
there, the segment runs again, this time with a graph. The operations are those of one piece, so
the gradients are too. Written out here rather than through ``torch.utils.checkpoint``: of nested
saved-tensor hooks torch applies only the innermost, and those of ``models.precision`` would hide
the block's activations from the checkpoint's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.models.split import BlockInputs, SplitModel


class Gradients(NamedTuple):
    """The value that was differentiated, its gradient [n] and, if asked for, that of the entry."""

    value: Tensor
    flat: Tensor
    delta: Tensor | None


def cut(start: int, stop: int, size: int) -> list[range]:
    """Blocks start..stop-1 in segments of ``size`` blocks, the last one shorter; 0 is all in one.

    >>> cut(1, 6, 2)
    [range(1, 3), range(3, 5), range(5, 6)]
    """
    step = size or max(1, stop - start)
    return [range(first, min(first + step, stop)) for first in range(start, stop, step)]


@torch.no_grad()
def enter(
    model: "SplitModel", z: Tensor, inputs: "BlockInputs", pieces: list[range]
) -> list[Tensor]:
    """The input of every segment, and the output of the last one: n + 1 tensors [B, T, D]."""
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
    """From delta behind the last segment down to the first; uses up ``entries``.

    Returns:
        The gradient of each segment's parameters in block order, and with ``to_entry`` the delta
        before the first.
    """
    found: list[Tensor] = []
    below: Tensor | None = delta
    for number, piece in reversed(list(enumerate(pieces))):

        def run(hidden: Tensor, piece: range = piece) -> Tensor:
            return model.forward(hidden, inputs, piece.start, piece.stop)

        wanted = to_entry or number > 0
        _, flat, below = differentiate(model, run, piece, entries.pop(), below, to_entry=wanted)
        found.append(flat)
    return found[::-1], below


def differentiate(
    model: "SplitModel",
    run: Callable[[Tensor], Tensor],
    blocks: range,
    entry: Tensor,
    delta: Tensor | None = None,
    *,
    to_entry: bool,
) -> Gradients:
    """Gradient of ``run(entry)`` (of its product with delta) in the parameters of ``blocks``."""
    entry = entry.detach().requires_grad_(to_entry)
    wanted: list[Tensor] = [*model.parameters_in(blocks), *([entry] if to_entry else [])]
    with torch.set_grad_enabled(bool(wanted)):
        output = run(entry)
    grads = list(torch.autograd.grad(output, wanted, delta)) if wanted else []
    below = grads.pop() if to_entry else None
    flat = [grad.reshape(-1) for grad in grads]
    return Gradients(
        output.detach(), torch.cat(flat) if flat else torch.zeros(0, device=entry.device), below
    )
