"""What a task and its partition look like in numbers, for people."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.data.pool import labels_of
from hofl.data.task import Example, Task


@dataclass(frozen=True)
class SplitSummary:
    """One split.

    Args:
        examples: how many.
        classes: examples of each class, [C]; empty for a task without classes.
        repeats: examples that equal an earlier one in every field.
        shared: distinct examples that the other split holds as well.
    """

    examples: int
    classes: tuple[int, ...]
    repeats: int
    shared: int


def summarise(task: Task) -> dict[str, SplitSummary]:
    """Counts of both splits; duplicates are found by the fields that the default prompt shows."""
    shown = task.prompt().fields
    prints = {name: _prints(rows, shown) for name, rows in _splits(task).items()}
    common = len(prints["train"].keys() & prints["test"].keys())
    return {
        name: SplitSummary(
            examples=len(rows),
            classes=tuple(class_counts(labels_of(rows), len(task.classes)).tolist()),
            repeats=len(rows) - len(prints[name]),
            shared=common,
        )
        for name, rows in _splits(task).items()
    }


def client_classes(shards: Sequence[np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Examples of each class at each client, [N, C]."""
    return np.stack([class_counts(labels[shard], classes) for shard in shards])


def class_counts(labels: np.ndarray, classes: int) -> np.ndarray:
    """Examples of each class, [C]."""
    return np.bincount(labels, minlength=classes) if classes else np.zeros(0, dtype=np.int64)


def partition_repeats(shards: Sequence[np.ndarray]) -> int:
    """How many examples of the shards are there more than once, counting all but the first."""
    rows = np.concatenate(shards)
    return len(rows) - len(np.unique(rows))


def _splits(task: Task) -> dict[str, Sequence[Example]]:
    return {"train": task.train, "test": task.test}


def _prints(examples: Iterable[Example], shown: Sequence[str]) -> Counter[Any]:
    """Digests instead of texts: a large set need not be held."""
    return Counter(
        hashlib.blake2b(
            "\0".join(one.fields[name].strip() for name in shown).encode(), digest_size=12
        ).digest()
        for one in examples
    )
