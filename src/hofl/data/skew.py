"""Clients that differ: in their mix of classes, in how much they hold, in which classes they see.

Every draw has its own stream, keyed by client or class, so no result depends on the order in which
clients are looked at.
"""

import numpy as np

from hofl.data.pool import Pool, enough_for
from hofl.errors import HoflError
from hofl.randomness import Purpose, generator

LARGEST_ALPHA = 1e6
# First coordinate of the partition's streams: one kind of draw each. Kind 0 is the IID shuffle.
_PROPORTIONS, _POOL, _REPLENISH, _SIZES, _DEAL = 1, 2, 3, 4, 5


def dirichlet(
    pool: Pool, num_clients: int, seed: int, *, alpha: float = 1.0, per_client: int | None = None
) -> list[np.ndarray]:
    """Label skew with equal client sizes, the paper's AG News protocol (Appendix, datasets).

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
        enough_for(num_clients, pool.size)
        per_client = pool.size // num_clients
    if per_client < 1:
        raise HoflError(f"per_client must be at least 1, got {per_client}.")
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    pools = [
        generator(seed, Purpose.PARTITION, _POOL, c).permutation(own)
        for c, own in enumerate(members)
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
    """Client i's mix of classes, Dir(alpha 1_C), [C]; nobody else's draw plays a part in it."""
    rng = generator(seed, Purpose.PARTITION, _PROPORTIONS, client)
    return rng.dirichlet(np.full(num_classes, alpha))


def quantity(pool: Pool, num_clients: int, seed: int, *, alpha: float = 1.0) -> list[np.ndarray]:
    """Quantity skew: sizes are Dir(alpha 1_N) of the data, at least 1; all examples, each once."""
    _check_alpha(alpha)
    enough_for(num_clients, pool.size)
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


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that add up to ``total``, each within one of its share of it.

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
