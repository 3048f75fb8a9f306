"""Who holds which examples, and which of them a local step sees. Seeded, in any order."""

from collections.abc import Iterator, Sequence

import numpy as np

from hofl.errors import HoflError
from hofl.randomness import Purpose, generator


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """Shuffle and deal: shard sizes differ by one at most."""
    if num_clients > num_examples:
        raise HoflError(
            f"{num_clients} clients cannot share {num_examples} examples: some would be empty. "
            "Use fewer clients or more data."
        )
    order = generator(seed, Purpose.PARTITION).permutation(num_examples)
    return [np.sort(shard) for shard in np.array_split(order, num_clients)]


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

    A client's split depends on (seed, client) and its own shard alone.
    """
    kept, held = [], []
    for client, shard in enumerate(shards):
        if len(shard) < 2:
            raise HoflError(
                f"client {client} has {len(shard)} example(s) and cannot hold one out: every "
                "client needs two. Use fewer clients, or evaluation.holdout=0."
            )
        count = min(max(round(share * len(shard)), 1), len(shard) - 1)
        order = generator(seed, Purpose.HOLDOUT, client).permutation(len(shard))
        held.append(shard[np.sort(order[:count])])
        kept.append(shard[np.sort(order[count:])])
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
