"""What a device is asked to do, and what one way of doing it costs."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hofl.core.batch import Batch, ChooseWord, Goal, PredictTokens, Texts
from hofl.core.errors import HoflError
from hofl.data.encoded import EncodedSet, fill
from hofl.local.site import Execution
from hofl.memory.hollow import META
from hofl.rules import LocalRule

_WORDS = 4  # label words to choose from; more of them cost a few bytes each
_SAMPLED = 512  # examples whose lengths are compared


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of a local step.

    Args:
        rule: the local rule.
        examples: of each of the B examples, the lengths of its texts: one, or one for each option
            that is scored by itself.
        answer_tokens: tokens to predict per text over the whole vocabulary, for tasks with free
            answers; 0 is one label word among a few.
    """

    rule: LocalRule
    examples: tuple[tuple[int, ...], ...]
    answer_tokens: int = 0

    @classmethod
    def even(
        cls, *, rule: LocalRule, batch_size: int, seq_len: int, answer_tokens: int = 0
    ) -> "Workload":
        """Return B examples of one text of T tokens each: nothing of a batch is padding."""
        for name, value in (("batch_size", batch_size), ("seq_len", seq_len)):
            if value < 1:
                raise HoflError(f"{name} must be at least 1, got {value}.")
        if not 0 <= answer_tokens <= seq_len:
            raise HoflError(
                f"answer_tokens must lie in 0..{seq_len} (seq_len), got {answer_tokens}."
            )
        return cls(rule=rule, examples=((seq_len,),) * batch_size, answer_tokens=answer_tokens)

    @property
    def batch_size(self) -> int:
        """Return B."""
        return len(self.examples)

    @property
    def seq_len(self) -> int:
        """Return the longest text's tokens."""
        return max(map(max, self.examples))

    @property
    def tokens(self) -> int:
        """Return the tokens of the batch."""
        return sum(map(sum, self.examples))

    def padded(self) -> "Workload":
        """Return the same examples with every text as long as the longest."""
        even = tuple((self.seq_len,) * len(example) for example in self.examples)
        return replace(self, examples=even)

    def parts(self, execution: Execution) -> list["Workload"]:
        """Cut as a device does (:meth:`EncodedSet.parts`); the heaviest part first."""
        sizes = [sum(example) for example in self.examples]
        filled = fill(sizes, execution.micro_batch, execution.micro_tokens)
        parts = [replace(self, examples=tuple(self.examples[i] for i in part)) for part in filled]
        return sorted(parts, key=lambda part: -part.tokens)

    def heaviest_part(self, execution: Execution) -> "Workload":
        """Return the most that a part of this batch, or of a lighter one, may be.

        A bound on tokens is best used by texts that fit together, which need not be the longest: a
        last text of what is missing stands for them.
        """
        part = self.parts(execution)[0]
        largest = sorted(map(sum, self.examples), reverse=True)
        most = sum(largest[: execution.micro_batch or None])
        missing = min(execution.micro_tokens, most) - part.tokens
        if missing <= 0:
            return part
        return replace(part, examples=(*part.examples, (missing,)))

    def batch(self, device: torch.device = META) -> Batch:
        """Return the examples as one batch, all tokens 0."""

        def ids(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        lengths = tuple(length for example in self.examples for length in example)
        slots = len(lengths) * max(self.answer_tokens, 1)
        goal: Goal = PredictTokens(ids(slots))
        if not self.answer_tokens:
            goal = ChooseWord(ids(_WORDS), ids(slots))
        return Batch(Texts(ids(sum(lengths)), lengths), ids(slots), goal, len(self.examples))


def heaviest_workload(
    train: EncodedSet, rule: LocalRule, batch_size: int, smallest_shard: int
) -> Workload:
    """Return the heaviest step, by tokens, that a client of a training set can draw.

    A client goes through its shard again and again, so an example may come once in each of the
    passes that a batch touches.

    Tokens are counted for the largest examples (:meth:`EncodedSet.sizes`) and for some from all
    over the set. Slots are the most that any of them takes: the longest text need not be the one
    with the longest answer.
    """
    longest = np.argsort(-train.sizes(), kind="stable")[: 8 * batch_size]
    spread = range(0, len(train), max(1, len(train) // _SAMPLED))
    encoded = [train.encoded(int(index)) for index in {*longest, *spread}]
    encoded.sort(key=lambda example: -sum(example.lengths))
    among_words = train.collate(encoded[:1]).goal.candidates is not None
    slots = max(-(-sum(map(len, e.spans)) // len(e.spans)) for e in encoded)  # of a text
    passes = 2 + (batch_size - 2) // smallest_shard
    heaviest = [example.lengths for example in encoded for _ in range(passes)][:batch_size]
    return Workload(rule=rule, examples=tuple(heaviest), answer_tokens=0 if among_words else slots)


ITEMS = ("weights", "adapter and optimizer", "activations", "logits", "transient")
"""What a peak is made of: frozen weights; w, w_t and optimizer state; what the top's forward pass
made; scores and losses at the slots; everything else, such as the bottom's and the backward
pass."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One way to take part in a round, and what it costs.

    Args:
        boundary: b.
        execution: how the steps are run.
        rule: the local rule.
        peak_bytes: of everything alive at once.
        items: what the peak is made of, by ``ITEMS``.
        zo_params: d_ZO, estimated from scalars.
        fo_params: d_FO, of the top.
        exact_params: trained by exact gradients, in the top or in the bottom.
        uplink_bytes: size of a serialised upload.
        relative_compute: block passes per local step, relative to plain backpropagation.
        parts: that a batch is cut into.
        read_bytes: streamed from disk in a local step, by all parts.
        storage: form of the frozen block weights.
        lossy: whether that is another one than the run's.
    """

    boundary: int
    execution: Execution
    rule: LocalRule
    peak_bytes: int
    items: dict[str, int] = field(repr=False)
    zo_params: int
    fo_params: int
    exact_params: int
    uplink_bytes: int
    relative_compute: float
    parts: int = 1
    read_bytes: int = 0
    storage: str = ""
    lossy: bool = False

    @property
    def working_bytes(self) -> int:
        """What the peak holds beside the frozen weights."""
        return self.peak_bytes - self.items.get(ITEMS[0], 0)

    def describe(self) -> str:
        """Return the plan in a few words: its bottom, its boundary and how it runs."""
        bottom = f"{self.rule.bottom.name} bottom" if self.boundary else "backpropagation"
        form = f"blocks in {self.storage}" if self.lossy else ""
        words = (f"boundary {self.boundary}", bottom, self.execution.describe(), form)
        return ", ".join(word for word in words if word)

    def facts(self) -> dict[str, Any]:
        """Return the cost as plain values."""
        return {
            "boundary": self.boundary,
            "bottom": self.rule.bottom.name,
            "exact_params": self.exact_params,
            "zo_params": self.zo_params,
            "fo_params": self.fo_params,
            "checkpointing": self.execution.checkpoint,
            "micro_batch": self.execution.micro_batch,
            "micro_tokens": self.execution.micro_tokens,
            "stream": self.execution.stream_bottom,
            "storage_dtype": self.storage,
            "uplink_bits": self.rule.uplink_bits,
            "peak_bytes": self.peak_bytes,
            "relative_compute": round(self.relative_compute, 6),
            "uplink_bytes": self.uplink_bytes,
            "read_bytes": self.read_bytes,
            "plan": self.describe(),
        }
