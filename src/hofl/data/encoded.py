"""Examples in tokens, and how they become batches. A set encodes an example when it is needed."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hofl.core.batch import Batch, Goal, Texts
from hofl.data.store import characters_of
from hofl.data.task import Example

Span = tuple[int, ...]


@dataclass(frozen=True)
class TokenLine:
    """A text in tokens.

    Args:
        tokens: what the model reads.
        slots: places in ``tokens`` after which a token is predicted.
        targets: the token predicted at each slot.
    """

    tokens: Span
    slots: Span
    targets: Span

    @classmethod
    def after(cls, prompt: Span, answer: Span) -> "TokenLine":
        """Predict an answer after its prompt; its last token is predicted, not read."""
        first = len(prompt) - 1
        return cls(prompt + answer[:-1], tuple(range(first, first + len(answer))), answer)


@dataclass(frozen=True)
class Encoded:
    """An example in tokens.

    Args:
        lines: its texts: one, or one for each of its options.
        prompt: what a generated answer would follow.
        label: index of the right option; -1 where there is none.
        cut: how many tokens were cut off to fit.
        answers: answers that a conversation has kept.
    """

    lines: tuple[TokenLine, ...]
    prompt: Span = ()
    label: int = -1
    cut: int = 0
    answers: int = 1

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return what is predicted in each text."""
        return tuple(line.targets for line in self.lines)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return how many tokens are read of each text."""
        return tuple(len(line.tokens) for line in self.lines)


@dataclass(frozen=True)
class Question:
    """What a model is asked to continue, greedily.

    Args:
        tokens: the prompt.
        stops: tokens that end an answer.
        max_new_tokens: most tokens of an answer.
        asked: the prompt for people.
        expected: the right answer.
    """

    tokens: Span
    stops: Span
    max_new_tokens: int
    asked: str
    expected: str


class EncodedSet(ABC):
    """Examples through a tokenizer; windows of documents are not one to one with them."""

    examples: Sequence[Example]

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encoded(self, index: int) -> Encoded:
        """Return an example in tokens."""

    @abstractmethod
    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Return the goal of a batch: tokens [M] and texts [M] of its slots, labels [B]."""

    @abstractmethod
    def sizes(self) -> np.ndarray:
        """Return a size of each example that grows with its tokens, [n], without encoding it."""

    def question(self, index: int) -> Question | None:
        """Return an example as a question that is answered by writing; None without such."""
        return None

    def grouped(self, groups: Sequence[np.ndarray]) -> tuple["EncodedSet", list[np.ndarray]]:
        """Return the set and each client's rows of it; documents are packed client by client."""
        return self, list(groups)

    def batch(self, indices: Iterable[int]) -> Batch:
        """Return the examples at ``indices`` as one batch."""
        return self.collate([self.encoded(int(i)) for i in indices])

    def parts(self, indices: Iterable[int], examples: int = 0, tokens: int = 0) -> list[Batch]:
        """Split the examples into parts within both bounds; 0 is no bound."""
        encoded = [self.encoded(int(i)) for i in indices]
        sizes = [sum(example.lengths) for example in encoded]
        return [self.collate([encoded[i] for i in part]) for part in fill(sizes, examples, tokens)]

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        """Lay the texts end to end."""
        row: list[int] = []
        slots: list[int] = []
        targets: list[int] = []
        owners: list[int] = []  # the text of each slot
        for text, line in enumerate(line for example in encoded for line in example.lines):
            slots += [len(row) + slot for slot in line.slots]
            row += line.tokens
            targets += line.targets
            owners += [text] * len(line.slots)
        lengths = tuple(length for example in encoded for length in example.lengths)
        return Batch(
            texts=Texts(torch.tensor(row), lengths),
            slots=torch.tensor(slots),
            goal=self.goal(targets, owners, [example.label for example in encoded]),
            examples=len(encoded),
        )


@dataclass(frozen=True)
class ExampleSet(EncodedSet):
    """Examples one by one, through an encoder with the model's tokenizer."""

    examples: Sequence[Example]
    encoder: Any

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.encoder.tokenizer

    def __len__(self) -> int:
        return len(self.examples)

    def sizes(self) -> np.ndarray:
        """Return the characters of each example, [n]."""
        return characters_of(self.examples)


def fill(sizes: Sequence[int], most: int = 0, total: int = 0) -> list[list[int]]:
    """Share items out to few parts of at most ``most`` items and sizes that sum to ``total``.

    Largest first, into the first part with room (first-fit decreasing); 0 is no bound, and an item
    that is larger than the bound gets a part of its own. Inside a part items keep their order.

    >>> fill([5, 9, 4, 3], total=9)
    [[1], [0, 2], [3]]
    """
    parts: list[list[int]] = []
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        for part in parts:
            full = 0 < most <= len(part)
            if not full and not 0 < total < sizes[item] + sum(sizes[i] for i in part):
                part.append(item)
                break
        else:
            parts.append([item])
    return [sorted(part) for part in parts]
