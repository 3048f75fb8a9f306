"""Who holds which examples: the partitions of a training set over the clients.

Every draw has its own stream, keyed by client or class, so no result depends on the order in which
clients are visited.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator
from hofl.data.store import labels_of
from hofl.data.task import Task

LARGEST_ALPHA = 1e6
# First coordinate of the partition's streams: one kind of draw each. Kind 0 is the IID shuffle.
_PROPORTIONS, _POOL, _REPLENISH, _SIZES, _DEAL = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Pool:
    """The training examples as a partition sees them.

    Args:
        size: number of examples n.
        labels: class of each, [n], or None for a task without classes.
        owners: client that each belongs to in the data, [n], or None.
    """

    size: int
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None

    @classmethod
    def of(cls, task: Task) -> "Pool":
        """Return the pool of a task's training examples."""
        return cls(
            size=len(task.train),
            labels=labels_of(task.train) if task.classes else None,
            owners=None if task.clients is None else np.asarray(task.clients),
        )

    def classes(self, partition: str) -> np.ndarray:
        """Return the labels, for a partition that needs them."""
        if self.labels is None:
            raise HoflError(
                f"partition {partition!r} splits by label, and this task has no classes: use iid, "
                "quantity or natural."
            )
        return self.labels


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Shuffle and deal: shard sizes differ by at most one."""
    _enough_for(num_clients, num_examples)
    order = generator(seed, Purpose.PARTITION).permutation(num_examples)
    return [np.sort(shard) for shard in np.array_split(order, num_clients)]


def dirichlet(
    pool: Pool, num_clients: int, seed: int, *, alpha: float = 1.0, per_client: int | None = None
) -> list[np.ndarray]:
    """Split with label skew and equal client sizes: the paper's AG News protocol (Appendix).

    Client i's class proportions are Dir(alpha 1_C); its ``per_client`` examples follow them to
    within rounding. Classes are C shuffled pools that clients consume in turn without replacement;
    an exhausted pool is replenished by sampling its class with replacement, so that duplicates,
    within and across clients, appear then and only then.

    Args:
        pool: the examples and their labels.
        num_clients: N.
        seed: of the run.
        alpha: concentration; small values give clients of nearly one class.
        per_client: examples of each client; an equal share of the data unless given.
    """
    labels = pool.classes("dirichlet")
    _check_alpha(alpha)
    if per_client is None:
        _enough_for(num_clients, pool.size)
        per_client = pool.size // num_clients
    if per_client < 1:
        raise HoflError(f"per_client must be at least 1, got {per_client}.")
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    pools = [
        generator(seed, Purpose.PARTITION, _POOL, c).permutation(rows)
        for c, rows in enumerate(members)
    ]
    shards = []
    for client in range(num_clients):
        shares = class_proportions(seed, client, alpha, len(pools))
        parts = []
        for c, count in enumerate(largest_remainder(shares, per_client).tolist()):
            fresh, pools[c] = pools[c][:count], pools[c][count:]
            parts.append(fresh)
            if len(fresh) < count:
                again = generator(seed, Purpose.PARTITION, _REPLENISH, client, c)
                parts.append(again.choice(members[c], size=count - len(fresh)))
        shards.append(np.sort(np.concatenate(parts)))
    return shards


def class_proportions(seed: int, client: int, alpha: float, num_classes: int) -> np.ndarray:
    """Draw client i's mix of classes, Dir(alpha 1_C), [C], independent of other clients."""
    rng = generator(seed, Purpose.PARTITION, _PROPORTIONS, client)
    return rng.dirichlet(np.full(num_classes, alpha))


def quantity(pool: Pool, num_clients: int, seed: int, *, alpha: float = 1.0) -> list[np.ndarray]:
    """Split with quantity skew: sizes are Dir(alpha 1_N) of the data, at least 1 each."""
    _check_alpha(alpha)
    _enough_for(num_clients, pool.size)
    shares = generator(seed, Purpose.PARTITION, _SIZES).dirichlet(np.full(num_clients, alpha))
    sizes = 1 + largest_remainder(shares, pool.size - num_clients)
    order = generator(seed, Purpose.PARTITION).permutation(pool.size)
    return [np.sort(shard) for shard in np.split(order, np.cumsum(sizes)[:-1])]


def label_shards(
    pool: Pool, num_clients: int, seed: int, *, shards_per_client: int = 2
) -> list[np.ndarray]:
    """Sort by label, cut into equal shards, deal some to each client (McMahan et al., 2017).

    A client then holds about ``shards_per_client`` classes; every example is used once.
    """
    labels = pool.classes("label-shards")
    if shards_per_client < 1:
        raise HoflError(f"shards_per_client must be at least 1, got {shards_per_client}.")
    if num_clients * shards_per_client > pool.size:
        raise HoflError(
            f"{num_clients} clients with {shards_per_client} shards each need as many examples, "
            f"and there are {pool.size}: use fewer clients or shards."
        )
    shuffled = generator(seed, Purpose.PARTITION).permutation(pool.size)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = np.array_split(ordered, num_clients * shards_per_client)
    deal = generator(seed, Purpose.PARTITION, _DEAL).permutation(len(cut))
    hands = deal.reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([cut[k] for k in hand])) for hand in hands]


def natural(pool: Pool, num_clients: int, seed: int) -> list[np.ndarray]:
    """Leave each example with the client that the data name."""
    if pool.owners is None:
        raise HoflError(
            "partition 'natural' needs data with a client column or one file per client."
        )
    owners, sizes = np.unique(pool.owners, return_counts=True)
    if len(owners) != num_clients:
        raise HoflError(
            f"the data belong to {len(owners)} clients, and the fleet has {num_clients}: set "
            f"fleet.clients = {len(owners)}."
        )
    order = np.argsort(pool.owners, kind="stable")
    return np.split(order, np.cumsum(sizes)[:-1])


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": lambda pool, num_clients, seed: iid(pool.size, num_clients, seed),
    "dirichlet": dirichlet,
    "quantity": quantity,
    "label-shards": label_shards,
    "natural": natural,
}
"""(pool, number of clients, seed, *, its options) -> row numbers of each client."""


def split(name: str, pool: Pool, num_clients: int, seed: int, **options: Any) -> list[np.ndarray]:
    """Split a pool by the partition of this name; options that are None keep their defaults."""
    if name not in PARTITIONS:
        raise HoflError(f"unknown partition {name!r}: choose one of {', '.join(PARTITIONS)}.")
    if num_clients < 1:
        raise HoflError(f"a partition needs at least 1 client, got {num_clients}.")
    if pool.size < 1:
        raise HoflError("a partition needs training examples, got none.")
    given = {key: value for key, value in options.items() if value is not None}
    known = options_of(name)
    for key in given:
        if key not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no options"
            raise HoflError(f"partition {name!r} does not take {key}: it {takes}.")
    return PARTITIONS[name](pool, num_clients, seed, **given)


def options_of(name: str) -> tuple[str, ...]:
    """Return the options that a partition takes."""
    parameters = inspect.signature(PARTITIONS[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def _enough_for(num_clients: int, num_examples: int) -> None:
    """Refuse to split fewer examples than there are clients."""
    if num_clients > num_examples:
        raise HoflError(
            f"{num_clients} clients cannot share {num_examples} examples: some would be empty. "
            "Use fewer clients or more data."
        )


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Round shares of ``total`` to whole numbers that add up to it, each within one of its share.

    >>> largest_remainder(np.array([0.5, 0.3, 0.2]), 7).tolist()
    [4, 2, 1]
    """
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= LARGEST_ALPHA:
        raise HoflError(
            f"alpha must be positive and at most {LARGEST_ALPHA:g} (then clients hardly differ), "
            f"got {alpha}."
        )
