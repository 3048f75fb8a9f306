"""From a task's examples to token batches. Texts are tokenised when they are needed.

A set holds no tokens: a thousand clients are a thousand arrays of indices into one memory-mapped
set of examples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hofl.core.batch import Batch, Texts
from hofl.core.errors import HoflError
from hofl.data.answers import Answers, Span, answers_of
from hofl.data.prompts import PromptEncoder, reserved
from hofl.data.task import Example, Prompt


@dataclass(frozen=True)
class Encoded:
    """An example in tokens: its prompt, what may follow it, and the index of the right span."""

    prompt: Span
    spans: tuple[Span, ...]
    label: int
    was_cut: bool

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the tokens of its texts; an answer's last token is predicted, not read."""
        return tuple(len(self.prompt) + len(span) - 1 for span in self.spans)


@dataclass(frozen=True)
class EncodedSet:
    """Examples through a tokenizer."""

    examples: Sequence[Example]
    encoder: PromptEncoder
    answers: Answers

    def __len__(self) -> int:
        return len(self.examples)

    def encoded(self, index: int) -> Encoded:
        """Return an example in tokens."""
        example = self.examples[index]
        try:
            spans = self.answers.spans(example)
            longest = max(reserved(self.encoder.prompt), *map(len, spans))
            prompt, was_cut = self.encoder.encode(example, longest)
        except HoflError as error:
            raise HoflError(f"example {index}: {error}") from None
        label = example.label
        if len(spans) > 1:  # real sets repeat an option: the first of equals stands for both
            label = spans.index(spans[label])
        return Encoded(prompt, spans, label, was_cut)

    def batch(self, indices: Iterable[int]) -> Batch:
        """Return the examples at ``indices`` as one batch."""
        return self.collate([self.encoded(int(i)) for i in indices])

    def parts(self, indices: Iterable[int], examples: int = 0, tokens: int = 0) -> list[Batch]:
        """Split the examples into parts within both bounds; 0 is no bound."""
        encoded = [self.encoded(int(i)) for i in indices]
        sizes = [sum(example.lengths) for example in encoded]
        return [self.collate([encoded[i] for i in part]) for part in fill(sizes, examples, tokens)]

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        """Lay one text per span end to end, with a slot before each token of the span."""
        row: list[int] = []
        slots: list[int] = []
        answers: list[int] = []
        owners: list[int] = []  # the text of each slot
        lines = [(example.prompt, span) for example in encoded for span in example.spans]
        for text, (prompt, span) in enumerate(lines):
            row += prompt
            slots += range(len(row) - 1, len(row) + len(span) - 1)
            row += span[:-1]
            answers += span
            owners += [text] * len(span)
        lengths = tuple(length for example in encoded for length in example.lengths)
        return Batch(
            texts=Texts(torch.tensor(row), lengths),
            slots=torch.tensor(slots),
            goal=self.answers.goal(answers, owners, [example.label for example in encoded]),
            examples=len(encoded),
        )


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


def encode(
    examples: Sequence[Example],
    prompt: Prompt,
    tokenizer: Any,
    max_length: int,
    window: int,
) -> EncodedSet:
    """Pair the examples of a task with a tokenizer, and check the label words.

    Args:
        examples: of the task.
        prompt: which of its prompts.
        tokenizer: of the model, or None where the model's folder has none.
        max_length: most tokens of a prompt; a longer text loses its end, never the answer's place.
        window: most tokens that the model can attend to.
    """
    if tokenizer is None:
        raise HoflError(
            "a task needs a tokenizer, and the model's folder has none: add its tokenizer files."
        )
    encoder = PromptEncoder(prompt, tokenizer, max_length, window)
    return EncodedSet(examples, encoder, answers_of(encoder))
