"""A task and its partition in numbers, for people."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.data.store import labels_of
from hofl.data.task import Example, Task


@dataclass(frozen=True)
class SplitSummary:
    """A split in numbers.

    Args:
        examples: number of examples.
        classes: examples of each class, [C]; empty for a task without classes.
        repeats: examples that equal an earlier one in every field.
        shared: distinct examples that the other split holds as well.
    """

    examples: int
    classes: tuple[int, ...]
    repeats: int
    shared: int


def summarise(task: Task) -> dict[str, SplitSummary]:
    """Count both splits; duplicates are equal in the fields that the default prompt shows."""
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
    """Count the examples of each class at each client, [N, C]."""
    return np.stack([class_counts(labels[shard], classes) for shard in shards])


def class_counts(labels: np.ndarray, classes: int) -> np.ndarray:
    """Count the examples of each class, [C]."""
    return np.bincount(labels, minlength=classes) if classes else np.zeros(0, dtype=np.int64)


def partition_repeats(shards: Sequence[np.ndarray]) -> int:
    """Count the examples that repeat an earlier one of any shard."""
    rows = np.concatenate(shards)
    return len(rows) - len(np.unique(rows))


def _splits(task: Task) -> dict[str, Sequence[Example]]:
    return {"train": task.train, "test": task.test}


def _prints(examples: Iterable[Example], shown: Sequence[str]) -> Counter[Any]:
    """Count digests instead of texts, so that a large set need not be held."""
    return Counter(
        hashlib.blake2b(
            "\0".join(example.fields[name].strip() for name in shown).encode(), digest_size=12
        ).digest()
        for example in examples
    )
