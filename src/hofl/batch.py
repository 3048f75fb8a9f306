"""What one local step sees: token ids, the slots to predict, and the words to choose from."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A right-padded batch.

    Attention is causal, so padding on the right cannot reach any real token: no mask is needed.

    Args:
        input_ids: [B, T] token ids.
        rows: [M] which example each prediction slot belongs to.
        columns: [M] the position whose output predicts the slot.
        targets: [M] index into ``candidates``, or a token id when there are none.
        candidates: [C] token ids to choose among (label words), or None for the vocabulary.
    """

    input_ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    candidates: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(
            input_ids=self.input_ids.to(device),
            rows=self.rows.to(device),
            columns=self.columns.to(device),
            targets=self.targets.to(device),
            candidates=None if self.candidates is None else self.candidates.to(device),
        )
