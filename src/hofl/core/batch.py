"""The input of one local step: token ids, the slots to predict, and the goal at those slots.

Three goals cover all tasks. Each asks the model's :class:`Head` for no more than it needs, so that
scores of [batch, length, vocabulary] are never computed:

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


class Head(Protocol):
    """The model's head at the M slots of a batch."""

    def words(self, candidates: Tensor) -> Tensor:
        """Return the scores of C words at every slot, [M, C], from candidates [C]."""
        ...

    def surprisals(self, tokens: Tensor) -> Tensor:
        """Return -log p of one token at each slot over the whole vocabulary, [M]."""
        ...


class Goal(Protocol):
    """What is predicted at the M slots of a batch; its n terms are examples or tokens."""

    @property
    def candidates(self) -> Tensor | None:
        """[C] token ids whose scores are needed, or None for the whole vocabulary."""
        ...

    def __len__(self) -> int:
        """Return n, the number of terms that the loss is a mean of."""
        ...

    def losses(self, head: Head) -> Tensor:
        """Return the loss of each term, [n], from the head at the slots."""
        ...

    def to(self, device: torch.device) -> "Goal":
        """Copy to another device."""
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

    def choices(self, head: Head) -> Tensor:
        """Return log-probabilities among the words, [B, C]."""
        return head.words(self.candidates).log_softmax(1)

    def losses(self, head: Head) -> Tensor:
        """Return cross-entropies over the words, [B]."""
        return cross_entropy(head.words(self.candidates), self.targets, reduction="none")

    def to(self, device: torch.device) -> "ChooseWord":
        """Copy to another device."""
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

    def choices(self, head: Head) -> Tensor:
        """Return log-probabilities among the options, [B, C]."""
        token_scores = -head.surprisals(self.tokens)  # [M]
        count = int(self.options.max()) + 1
        span_scores = token_scores.new_zeros(count).index_add(0, self.options, token_scores)
        return span_scores.view(len(self), -1).log_softmax(1)

    def losses(self, head: Head) -> Tensor:
        """Return cross-entropies over the options, [B]."""
        return -self.choices(head).gather(1, self.targets[:, None])[:, 0]

    def to(self, device: torch.device) -> "ChooseOption":
        """Copy to another device."""
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

    def losses(self, head: Head) -> Tensor:
        """Return cross-entropies over the vocabulary, [M]."""
        return head.surprisals(self.targets)

    def to(self, device: torch.device) -> "PredictTokens":
        """Copy to another device."""
        return PredictTokens(self.targets.to(device))


@dataclass(frozen=True)
class Texts:
    """Texts laid end to end, without padding.

    Args:
        tokens: [N] ids, N = sum of T_i.
        lengths: T_i of each text.
    """

    tokens: Tensor
    lengths: tuple[int, ...]

    def positions(self) -> Tensor:
        """Return the place of each token in its text, [N]."""
        return torch.cat([torch.arange(n, device=self.tokens.device) for n in self.lengths])

    def in_rows_of(self, most: int) -> list["Texts"]:
        """Cut between texts into rows of at most so many tokens, at least one text each."""
        rows: list[list[int]] = []
        for length in self.lengths:
            if not rows or sum(rows[-1]) + length > most:
                rows.append([])
            rows[-1].append(length)
        tokens = self.tokens.split([sum(row) for row in rows])
        return [Texts(part, tuple(row)) for part, row in zip(tokens, rows, strict=True)]

    def to(self, device: torch.device) -> "Texts":
        """Copy to another device."""
        return Texts(self.tokens.to(device), self.lengths)


@dataclass(frozen=True)
class Batch:
    """The examples of a step, or of a part of it.

    Args:
        texts: one for an example, or one for each of its options.
        slots: [M] places in the row of tokens whose outputs predict.
        goal: what is to be predicted there.
        examples: B.
    """

    texts: Texts
    slots: Tensor
    goal: Goal
    examples: int

    def to(self, device: torch.device) -> "Batch":
        """Copy to another device."""
        return Batch(
            texts=self.texts.to(device),
            slots=self.slots.to(device),
            goal=self.goal.to(device),
            examples=self.examples,
        )


def shares(parts: Sequence[Batch]) -> list[float]:
    """Return weights by which the parts' mean losses add up to the mean loss of all terms."""
    terms = [len(part.goal) for part in parts]
    return [count / sum(terms) for count in terms]
