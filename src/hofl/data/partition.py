"""Who holds which examples, and which of them a local step sees. Seeded, in any order."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hofl.data import skew
from hofl.data.pool import Pool, enough_for
from hofl.errors import HoflError
from hofl.randomness import Purpose, generator


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Shuffle and deal: shard sizes differ by one at most."""
    enough_for(num_clients, num_examples)
    order = generator(seed, Purpose.PARTITION).permutation(num_examples)
    return [np.sort(shard) for shard in np.array_split(order, num_clients)]


def natural(pool: Pool, num_clients: int, seed: int) -> list[np.ndarray]:
    """Each example stays with its owner, as the data says; nothing is drawn."""
    if pool.owners is None:
        raise HoflError(
            "partition 'natural' needs data with a client column or one file per client."
        )
    found, sizes = np.unique(pool.owners, return_counts=True)
    if len(found) != num_clients:
        raise HoflError(
            f"the data belong to {len(found)} clients, and the fleet has {num_clients}: set "
            f"fleet.clients = {len(found)}."
        )
    order = np.argsort(pool.owners, kind="stable")
    return np.split(order, np.cumsum(sizes)[:-1])


PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": lambda pool, num_clients, seed: iid(pool.size, num_clients, seed),
    "dirichlet": skew.dirichlet,
    "quantity": skew.quantity,
    "label-shards": skew.label_shards,
    "natural": natural,
}
"""(pool, number of clients, seed, *, own options) -> row numbers of each client."""


def split(name: str, pool: Pool, num_clients: int, seed: int, **options: Any) -> list[np.ndarray]:
    """Divide a pool by a partition's name; options that are None stay at their defaults."""
    if name not in PARTITIONS:
        raise HoflError(f"unknown partition {name!r}: choose one of {', '.join(PARTITIONS)}.")
    given = {key: value for key, value in options.items() if value is not None}
    known = options_of(name)
    for key in given:
        if key not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no options"
            raise HoflError(f"partition {name!r} does not take {key}: it {takes}.")
    return PARTITIONS[name](pool, num_clients, seed, **given)


def options_of(name: str) -> tuple[str, ...]:
    """The options that a partition takes."""
    parameters = inspect.signature(PARTITIONS[name]).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def subset(shards: Sequence[np.ndarray], most: int, seed: int) -> list[np.ndarray]:
    """At most ``most`` examples of every client, drawn at random from its own shard."""
    chosen = []
    for client, shard in enumerate(shards):
        order = generator(seed, Purpose.SUBSET, client).permutation(len(shard))
        chosen.append(shard[np.sort(order[:most])])
    return chosen


def hold_out(
    shards: Sequence[np.ndarray], share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split every shard into (training, held-out) examples, at least one of each.

    What a client holds out depends on (seed, client) and its own shard alone. Where shards overlap
    (a replenished Dirichlet partition), nobody trains on what anybody holds out.
    """
    held = []
    for client, shard in enumerate(shards):
        distinct = np.unique(shard)  # a replenished shard may hold an example twice
        if len(distinct) < 2:
            raise HoflError(
                f"client {client} has {len(distinct)} example(s) and cannot hold one out: every "
                "client needs two. Use fewer clients, or evaluation.holdout=0."
            )
        count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
        order = generator(seed, Purpose.HOLDOUT, client).permutation(len(distinct))
        held.append(distinct[np.sort(order[:count])])
    secret = np.concatenate(held)
    kept = [shard[~np.isin(shard, secret)] for shard in shards]
    for client, left in enumerate(kept):
        if not len(left):
            raise HoflError(
                f"client {client} shares all of its examples with clients that hold them out. Use "
                "fewer clients or a smaller evaluation.holdout."
            )
    return kept, held


def minibatches(
    shard: np.ndarray, *, seed: int, round_number: int, client: int, steps: int, batch_size: int
) -> Iterator[Sequence[int]]:
    """The examples of each local step: passes over the shuffled shard, reshuffled at each end.

    The stream depends on (seed, round, client) alone, so a resumed run needs no iterator state.
    """
    if not len(shard):
        raise HoflError(f"client {client} has no examples.")
    rng = generator(seed, Purpose.BATCH, round_number, client)
    queue: list[int] = []
    for _ in range(steps):
        while len(queue) < batch_size:
            queue.extend(shard[rng.permutation(len(shard))].tolist())
        yield queue[:batch_size]
        queue = queue[batch_size:]
