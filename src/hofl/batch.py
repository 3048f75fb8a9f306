"""What one local step sees: token ids, the slots to predict, and what is to be predicted there.

Three goals cover all tasks, and each says which rows of the model's head it needs, so that nobody
computes scores of [batch, length, vocabulary]:

- :class:`ChooseWord`: one of a few words of a single token (classification, multiple choice);
- :class:`ChooseOption`: one of several spans of text, by the sum of their log-probabilities;
- :class:`PredictTokens`: the tokens of a free text, one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


class Goal(Protocol):
    """What is predicted at the M slots of a batch; its n terms are examples or tokens."""

    @property
    def candidates(self) -> Tensor | None:
        """[C] token ids whose scores are needed, or None for the whole vocabulary."""
        ...

    def __len__(self) -> int:
        """n, the number of terms that the loss is a mean of."""
        ...

    def losses(self, scores: Tensor) -> Tensor:
        """Scores at the slots, [M, C] or [M, V] -> the loss of each term, [n]."""
        ...

    def to(self, device: torch.device) -> "Goal":
        """The same goal on another device."""
        ...


@dataclass(frozen=True)
class ChooseWord:
    """Pick one of C single-token words at one slot per example.

    Args:
        candidates: [C] token ids.
        targets: [B] index of the right one.
    """

    candidates: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def choices(self, scores: Tensor) -> Tensor:
        """[B, C] scores -> log-probabilities of the words among each other, [B, C]."""
        return scores.log_softmax(1)

    def losses(self, scores: Tensor) -> Tensor:
        """Cross-entropy over the words, [B]."""
        return cross_entropy(scores, self.targets, reduction="none")

    def to(self, device: torch.device) -> "ChooseWord":
        """The same on another device."""
        return ChooseWord(self.candidates.to(device), self.targets.to(device))


@dataclass(frozen=True)
class ChooseOption:
    """Pick one of C spans per example; a span's score is the sum of its log-probabilities.

    For spans of one token this equals :class:`ChooseWord`: the vocabulary's normaliser is the same
    for all options of an example and cancels.

    Args:
        tokens: [M] the token of each slot.
        options: [M] which of the B * C options a slot belongs to, example by example.
        targets: [B] index of the right option of each example.
    """

    tokens: Tensor
    options: Tensor
    targets: Tensor
    candidates: None = None

    def __len__(self) -> int:
        return len(self.targets)

    def choices(self, scores: Tensor) -> Tensor:
        """[M, V] scores -> log-probabilities of the options among each other, [B, C]."""
        of_tokens = -cross_entropy(scores, self.tokens, reduction="none")  # [M]
        count = int(self.options.max()) + 1
        of_spans = of_tokens.new_zeros(count).index_add(0, self.options, of_tokens)
        return of_spans.view(len(self), -1).log_softmax(1)

    def losses(self, scores: Tensor) -> Tensor:
        """Cross-entropy over the options, [B]."""
        return -self.choices(scores).gather(1, self.targets[:, None])[:, 0]

    def to(self, device: torch.device) -> "ChooseOption":
        """The same on another device."""
        return ChooseOption(
            self.tokens.to(device), self.options.to(device), self.targets.to(device)
        )


@dataclass(frozen=True)
class PredictTokens:
    """Predict a text token by token.

    Args:
        targets: [M] token ids.
    """

    targets: Tensor
    candidates: None = None

    def __len__(self) -> int:
        return len(self.targets)

    def losses(self, scores: Tensor) -> Tensor:
        """Cross-entropy over the vocabulary, [M]."""
        return cross_entropy(scores, self.targets, reduction="none")

    def to(self, device: torch.device) -> "PredictTokens":
        """The same on another device."""
        return PredictTokens(self.targets.to(device))


Choice = ChooseWord | ChooseOption
"""Goals with a right answer among C, of which ``choices`` gives the log-probabilities."""


@dataclass(frozen=True)
class Batch:
    """A right-padded batch.

    Attention is causal, so padding on the right cannot reach any real token: no mask is needed.

    Args:
        input_ids: [R, T] token ids; an example takes one row, or one for each of its options.
        rows: [M] the row of each prediction slot.
        columns: [M] the position whose output predicts the slot.
        goal: what is to be predicted there.
        examples: B.
    """

    input_ids: Tensor
    rows: Tensor
    columns: Tensor
    goal: Goal
    examples: int

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(
            input_ids=self.input_ids.to(device),
            rows=self.rows.to(device),
            columns=self.columns.to(device),
            goal=self.goal.to(device),
            examples=self.examples,
        )


def shares(parts: Sequence[Batch]) -> list[float]:
    """Weights with which the parts' mean losses add up to the mean loss of all their terms."""
    terms = [len(part.goal) for part in parts]
    return [count / sum(terms) for count in terms]
