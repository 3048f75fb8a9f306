"""A client's shard: which of its examples it may use, holds out, and sees in a local step."""

from collections.abc import Iterator, Sequence

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator


def subset(shards: Sequence[np.ndarray], most: int, seed: int) -> list[np.ndarray]:
    """Draw at most ``most`` examples of every client at random from its shard."""
    chosen = []
    for client, shard in enumerate(shards):
        order = generator(seed, Purpose.SUBSET, client).permutation(len(shard))
        chosen.append(shard[np.sort(order[:most])])
    return chosen


def hold_out(
    shards: Sequence[np.ndarray], share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split every shard into (training, held-out) examples, at least one of each.

    What a client holds out depends on (seed, client) and its shard alone. Where shards overlap (a
    replenished Dirichlet partition), no client trains on what any client holds out.
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
    """Yield the examples of each local step: passes over the shard, reshuffled for each pass.

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
