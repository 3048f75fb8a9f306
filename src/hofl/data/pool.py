"""What is split over the clients: how many examples, their labels, their natural owners."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hofl.data.store import StoredExamples
from hofl.data.task import Example, Task
from hofl.errors import HoflError


@dataclass(frozen=True)
class Pool:
    """The training examples as a partition sees them.

    Args:
        size: number of examples n.
        labels: class of each, [n], or None for a task without classes.
        owners: client of each by nature, [n], or None.
    """

    size: int
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None

    @classmethod
    def of(cls, task: Task) -> "Pool":
        """The pool of a task's training examples."""
        return cls(
            size=len(task.train),
            labels=labels_of(task.train) if task.classes else None,
            owners=None if task.clients is None else np.asarray(task.clients),
        )

    def classes(self, partition: str) -> np.ndarray:
        """The labels, for a partition that cannot do without."""
        if self.labels is None:
            raise HoflError(
                f"partition {partition!r} splits by label, and this task has no classes: use iid, "
                "quantity or natural."
            )
        return self.labels


def labels_of(examples: Sequence[Example]) -> np.ndarray:
    """Labels of all examples, [n]; stored examples are not made for it."""
    if isinstance(examples, StoredExamples):
        return examples.labels
    return np.array([example.label for example in examples], dtype=np.int64)


def enough_for(num_clients: int, num_examples: int) -> None:
    """Refuse to split fewer examples than there are clients."""
    if num_clients < 1:
        raise HoflError(f"a partition needs at least 1 client, got {num_clients}.")
    if num_clients > num_examples:
        raise HoflError(
            f"{num_clients} clients cannot share {num_examples} examples: some would be empty. "
            "Use fewer clients or more data."
        )
