"""What a device is asked to do, and what one way of doing it costs."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.batch import Batch, ChooseWord, Goal, PredictTokens
from hofl.errors import HoflError
from hofl.local.execution import Execution
from hofl.messages import LocalRule
from hofl.planning.hollow import META

_WORDS = 4  # label words to choose from; more of them cost a few bytes each


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A local step's work.

    Args:
        rule: the local rule.
        batch_size: B.
        seq_len: T, the padded length.
        answer_tokens: tokens to predict per row over the whole vocabulary, for tasks with free
            answers; 0 is one label word among a few.
        rows_per_example: rows of tokens that an example takes: its number of options, where each
            is scored by itself.
    """

    rule: LocalRule
    batch_size: int
    seq_len: int
    answer_tokens: int = 0
    rows_per_example: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_len"):
            if getattr(self, name) < 1:
                raise HoflError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0 <= self.answer_tokens <= self.seq_len:
            raise HoflError(
                f"answer_tokens must lie in 0..{self.seq_len} (seq_len), got {self.answer_tokens}."
            )

    def batch(self, examples: int, device: torch.device = META) -> Batch:
        """A batch of some of the examples, all tokens 0."""

        def ids(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        rows = examples * self.rows_per_example
        slots = rows * max(self.answer_tokens, 1)
        goal: Goal = PredictTokens(ids(slots))
        if not self.answer_tokens:
            goal = ChooseWord(ids(_WORDS), ids(slots))
        return Batch(ids(rows, self.seq_len), ids(slots), ids(slots), goal, examples)


ITEMS = ("weights", "adapter and optimizer", "activations", "logits", "transient")
"""What a peak is made of: frozen weights; w, w_t and optimizer state; what the top's forward pass
made; scores and losses at the slots; all else, such as the bottom's and the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One way to take part in a round, and what it costs.

    Args:
        boundary: b.
        execution: how the steps are run.
        bottom: the bottom rule.
        peak_bytes: of everything alive at once.
        items: what the peak is made of, by ``ITEMS``.
        zo_params: d_ZO.
        fo_params: d_FO.
        uplink_bytes: size of a serialised upload.
        relative_compute: block passes per local step, over those of plain backpropagation.
    """

    boundary: int
    execution: Execution
    bottom: str
    peak_bytes: int
    items: dict[str, int] = field(repr=False)
    zo_params: int
    fo_params: int
    uplink_bytes: int
    relative_compute: float
