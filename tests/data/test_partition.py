"""Shards and minibatches: who holds what, and what each local step sees."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.data.partition import iid
from hofl.data.shards import minibatches

SHARD = np.array([3, 14, 15, 92, 65, 35, 89])


def stream(
    shard: np.ndarray = SHARD,
    *,
    seed: int = 1,
    round_number: int = 2,
    client: int = 3,
    steps: int = 21,
    batch_size: int = 4,
) -> list[list[int]]:
    batches = minibatches(
        shard,
        seed=seed,
        round_number=round_number,
        client=client,
        steps=steps,
        batch_size=batch_size,
    )
    return [list(batch) for batch in batches]


@pytest.mark.parametrize(
    ("examples", "clients"), [(1, 1), (7, 7), (100, 30), (1001, 8), (64, 64), (5, 1)]
)
def test_shards_are_disjoint_complete_and_even(examples: int, clients: int):
    shards = iid(examples, clients, seed=4)
    assert len(shards) == clients
    assert sorted(chain.from_iterable(shards)) == list(range(examples))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_shards_follow_from_the_seed():
    first, again, other = (iid(200, 7, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_shards_are_shuffled():
    # In the given order, example 0 would always be the first client's.
    holders = Counter(
        next(client for client, shard in enumerate(iid(20, 4, seed)) if 0 in shard)
        for seed in range(2000)
    )
    assert all(
        abs(holders[client] - 500) < 4.5 * (2000 * 0.25 * 0.75) ** 0.5 for client in range(4)
    )


def test_more_clients_than_examples_is_an_error_with_both_numbers():
    with pytest.raises(HoflError, match="11 clients cannot share 10 examples"):
        iid(10, 11, seed=0)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 7, 10, 30])
def test_every_pass_visits_every_example_once(batch_size: int):
    batches = stream(batch_size=batch_size)
    assert [len(batch) for batch in batches] == [batch_size] * 21
    seen = list(chain.from_iterable(batches))
    passes = [seen[start : start + 7] for start in range(0, len(seen) - 6, 7)]
    assert all(sorted(one) == sorted(SHARD.tolist()) for one in passes)
    assert len(passes) == 3 * batch_size
    assert len(set(map(tuple, passes))) > 1, "passes are reshuffled"


def test_minibatches_depend_on_seed_round_and_client():
    base = stream()
    assert stream() == base
    assert stream(seed=2) != base
    assert stream(round_number=3) != base
    assert stream(client=4) != base
    assert stream(round_number=3, client=2) != base


def test_minibatches_do_not_depend_on_how_they_are_asked_for():
    assert stream(steps=6) == stream(steps=21)[:6]
    flat = [list(chain.from_iterable(stream(batch_size=size, steps=12 // size))) for size in (2, 6)]
    assert flat[0] == flat[1]


def test_minibatches_do_not_depend_on_other_clients_or_global_generators():
    alone = {client: stream(client=client) for client in (0, 1)}
    both = [
        minibatches(SHARD, seed=1, round_number=2, client=client, steps=21, batch_size=4)
        for client in (0, 1)
    ]
    together: dict[int, list[list[int]]] = {0: [], 1: []}
    for step in range(21):
        np.random.seed(step)
        for client in (0, 1):
            together[client].append(list(next(both[client])))
    assert together == alone


def test_rounds_start_anywhere_in_the_shard():
    firsts = Counter(stream(round_number=t, steps=1, batch_size=1)[0][0] for t in range(1400))
    assert set(firsts) == set(SHARD.tolist())
    assert all(abs(n - 200) < 4.5 * (1400 * 6 / 49) ** 0.5 for n in firsts.values())
