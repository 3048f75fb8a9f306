"""Documents joined and cut into windows, for plain language modelling. Never across clients.

A client's documents lie end to end, each ended by the end-of-text token, and are cut into windows
of at most T tokens. Every token is predicted exactly once: the first of a window after the
tokenizer's start token, or after the token before it for tokenizers that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hofl.core.batch import Goal, PredictTokens
from hofl.core.errors import HoflError
from hofl.data.encoded import Encoded, EncodedSet, Question, TokenLine
from hofl.data.task import Example


@dataclass(frozen=True)
class DocumentSet(EncodedSet):
    """Windows of documents; a window is what a step counts as an example.

    Tokens are held in memory, four bytes each.

    Args:
        examples: the documents.
        model_tokenizer: of the model.
        documents: tokens of each document with its end, int32.
        groups: documents that share windows, client by client.
        max_length: T, most tokens of a window.
    """

    examples: Sequence[Example]
    model_tokenizer: Any
    documents: tuple[np.ndarray, ...]
    groups: tuple[np.ndarray, ...]
    max_length: int

    @classmethod
    def of(cls, examples: Sequence[Example], tokenizer: Any, max_length: int) -> "DocumentSet":
        """Tokenise documents; each is a group of its own until they are grouped."""
        end = _end(tokenizer)
        documents = tuple(
            np.array([*tokenizer(text, add_special_tokens=False)["input_ids"], end], np.int32)
            for text in (example.fields["text"] for example in examples)
        )
        alone = tuple(np.array([index]) for index in range(len(documents)))
        return cls(examples, tokenizer, documents, alone, max_length)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.model_tokenizer

    def grouped(self, groups: Sequence[np.ndarray]) -> tuple[EncodedSet, list[np.ndarray]]:
        """Pack documents group by group; return the windows, and which of them each group has."""
        packed = replace(self, groups=tuple(groups))
        firsts = np.cumsum([0, *packed._counts])
        return packed, [np.arange(*pair) for pair in pairwise(firsts)]

    def __len__(self) -> int:
        return sum(self._counts)

    def encoded(self, index: int) -> Encoded:
        """Return a window: every token is predicted, all but the last are read."""
        group = int(np.searchsorted(self._ends, index, side="right"))
        number = index - (int(self._ends[group - 1]) if group else 0)
        stream, start = self._streams[group], number * self.max_length
        targets = tuple(stream[start : start + self.max_length].tolist())
        before = self._start if self._start is not None else int(stream[start - 1])
        read = (before, *targets[:-1])
        return Encoded((TokenLine(read, tuple(range(len(read))), targets),))

    def question(self, index: int) -> Question:
        """Ask for the second half of a window after its first; it is continued as long as that."""
        (line,) = self.encoded(index).lines
        half = (len(line.targets) + 1) // 2
        return Question(
            tokens=line.tokens[: half + 1],
            stops=(_end(self.tokenizer),),
            max_new_tokens=max(1, len(line.targets) - half),
            asked=self.tokenizer.decode(line.targets[:half], skip_special_tokens=True),
            expected=self.tokenizer.decode(line.targets[half:], skip_special_tokens=True),
        )

    def goal(self, tokens: Sequence[int], options: Sequence[int], labels: Sequence[int]) -> Goal:
        """Predict every token."""
        return PredictTokens(torch.tensor(tokens))

    def sizes(self) -> np.ndarray:
        """Return the tokens of each window, [n]."""
        sizes = [self.max_length] * len(self)
        for end, stream in zip(self._ends, self._streams, strict=True):
            sizes[int(end) - 1] = (len(stream) - 1) % self.max_length + 1
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def _streams(self) -> tuple[np.ndarray, ...]:
        """Return the documents of each group end to end.

        The last token of a stream is an end of text: for tokenizers without a start token it also
        stands before the first (``stream[-1]``).
        """
        return tuple(np.concatenate([self.documents[i] for i in group]) for group in self.groups)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Return the number of windows of each group."""
        lengths = [sum(len(self.documents[i]) for i in group) for group in self.groups]
        return tuple(-(-length // self.max_length) for length in lengths)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Return the window behind the last of each group."""
        return np.cumsum(self._counts)

    @cached_property
    def _start(self) -> int | None:
        """Return the token that the tokenizer puts before every text; None where it has none."""
        first = self.tokenizer("x")["input_ids"][0]
        return first if first == self.tokenizer.bos_token_id else None


def _end(tokenizer: Any) -> int:
    """Return the token that ends a document."""
    for token in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        if token is not None:
            return int(token)
    raise HoflError(
        "the tokenizer has no end-of-text token, so documents cannot be told apart: use another "
        "model for task 'text'."
    )
