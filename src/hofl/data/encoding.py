"""From a task's examples to token batches. Texts are tokenised when they are asked for.

A set holds no token of its own: a thousand clients are a thousand arrays of indices into one
memory-mapped set of examples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hofl.batch import Batch
from hofl.data.answers import Answers, Span, answers_of
from hofl.data.prompts import PromptEncoder, reserved
from hofl.data.task import Example, Prompt
from hofl.errors import HoflError


@dataclass(frozen=True)
class Encoded:
    """One example in tokens: its prompt, what may follow it, and the index of the right span."""

    prompt: Span
    spans: tuple[Span, ...]
    label: int
    was_cut: bool

    @property
    def length(self) -> int:
        """Tokens of its longest row; the last of an answer is predicted, not read."""
        return len(self.prompt) + max(map(len, self.spans)) - 1


@dataclass(frozen=True)
class EncodedSet:
    """Examples through a tokenizer."""

    examples: Sequence[Example]
    encoder: PromptEncoder
    answers: Answers

    def __len__(self) -> int:
        return len(self.examples)

    def encoded(self, index: int) -> Encoded:
        """One example in tokens."""
        example = self.examples[index]
        try:
            spans = self.answers.spans(example)
            longest = max(reserved(self.encoder.prompt), *map(len, spans))
            prompt, was_cut = self.encoder.encode(example, longest)
        except HoflError as error:
            raise HoflError(f"example {index}: {error}") from None
        label = example.label
        if len(spans) > 1:  # real sets hold an option twice: the first of equals stands for both
            label = spans.index(spans[label])
        return Encoded(prompt, spans, label, was_cut)

    def batch(self, indices: Iterable[int]) -> Batch:
        """The examples at ``indices`` as one batch."""
        return self.collate([self.encoded(int(i)) for i in indices])

    def parts(self, indices: Iterable[int], size: int) -> list[Batch]:
        """The examples as parts of at most ``size``, alike in length, so that little is padding.

        With size 0 they stay together, in their order.
        """
        encoded = [self.encoded(int(i)) for i in indices]
        if not 0 < size < len(encoded):
            return [self.collate(encoded)]
        encoded.sort(key=lambda one: one.length)
        return [self.collate(encoded[i : i + size]) for i in range(0, len(encoded), size)]

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        """One row of tokens for each span, right-padded, with a slot before each span's token."""
        lines = [(one.prompt, span) for one in encoded for span in one.spans]
        length = max(one.length for one in encoded)
        ids = np.zeros((len(lines), length), dtype=np.int64)
        rows: list[int] = []
        columns: list[int] = []
        tokens: list[int] = []
        for row, (prompt, span) in enumerate(lines):
            read = (*prompt, *span[:-1])
            ids[row, : len(read)] = read
            rows += [row] * len(span)
            columns += range(len(prompt) - 1, len(read))
            tokens += span
        return Batch(
            input_ids=torch.from_numpy(ids),
            rows=torch.tensor(rows),
            columns=torch.tensor(columns),
            goal=self.answers.goal(tokens, rows, [one.label for one in encoded]),
            examples=len(encoded),
        )


def encode(
    examples: Sequence[Example],
    prompt: Prompt,
    tokenizer: Any,
    max_length: int,
    window: int,
) -> EncodedSet:
    """Examples of a task through a tokenizer, with the label words checked.

    Args:
        examples: of the task.
        prompt: which of its prompts.
        tokenizer: of the model, or None where the model's folder has none.
        max_length: most tokens of a prompt; a longer text loses its end, never the answer's place.
        window: most tokens that the model can attend to.
    """
    if tokenizer is None:
        raise HoflError("a task needs a tokenizer, and the model's folder has none.")
    encoder = PromptEncoder(prompt, tokenizer, max_length, window)
    return EncodedSet(examples, encoder, answers_of(encoder))
