"""The top segment on one batch: loss and gradients as functions of the boundary activation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hofl.batch import Batch
from hofl.local.segments import Gradients, cut, differentiate, enter, pull_back

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.models.split import BlockInputs, SplitModel


@dataclass(frozen=True)
class Top:
    """Blocks b..L-1 and the head.

    Args:
        model: the split model, at its current parameters.
        inputs: what the blocks get beside the hidden state.
        batch: says which scores and what loss.
        boundary: b.
        segment: blocks whose activations are alive at a time; 0 is all of them.
    """

    model: "SplitModel"
    inputs: "BlockInputs"
    batch: Batch
    boundary: int
    segment: int = 0

    def loss(self, z: Tensor) -> Tensor:
        """The batch's loss at z [B, T, D]."""
        return self._loss_from(z, self.boundary)

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        """Loss, g_FO [d_FO], and with ``to_boundary`` delta [B, T, D].

        The last segment is differentiated as it runs, together with the head; only those below
        it run twice.
        """
        blocks = self.model.num_blocks
        *pieces, last = cut(self.boundary, blocks, self.segment) or [range(blocks, blocks)]
        entries = enter(self.model, z, self.inputs, pieces)
        loss, flat, delta = differentiate(
            self.model,
            lambda hidden: self._loss_from(hidden, last.start),
            last,
            entries.pop(),
            to_entry=to_boundary or bool(pieces),
        )
        if not pieces:
            return Gradients(loss, flat, delta)
        assert delta is not None
        below, delta = pull_back(
            self.model, self.inputs, pieces, entries, delta, to_entry=to_boundary
        )
        return Gradients(loss, torch.cat([*below, flat]), delta)

    def _loss_from(self, hidden: Tensor, start: int) -> Tensor:
        model = self.model
        return model.loss(model.forward(hidden, self.inputs, start, model.num_blocks), self.batch)
