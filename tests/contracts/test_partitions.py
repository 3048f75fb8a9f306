"""What every partition promises, checked for each entry of ``PARTITIONS``.

A new partition is tested by being listed, with options in ``EXAMPLES``.
"""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.data.partition import PARTITIONS, Pool, options_of, split

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "iid": [{}],
    "dirichlet": [{"alpha": 0.1}, {"alpha": 1.0, "per_client": 9}],
    "quantity": [{}, {"alpha": 0.2}],
    "label-shards": [{}, {"shards_per_client": 3}],
    "natural": [{}],
}
REPEATING = {"dirichlet"}
"""Partitions that draw a class again when it is exhausted; all others deal every row once."""
NATURAL = 6
"""Owners of the examples by nature."""

each = pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in PARTITIONS for options in EXAMPLES.get(name, [])],
)


def pool(size: int) -> Pool:
    """Rows of three classes of different sizes, owned by at most six clients."""
    rng = np.random.default_rng(size)
    return Pool(size, rng.choice(3, size, p=[0.6, 0.3, 0.1]), np.arange(size) % NATURAL)


def test_every_partition_has_examples() -> None:
    assert set(EXAMPLES) == set(PARTITIONS)
    assert set(PARTITIONS) >= REPEATING
    for name in PARTITIONS:
        given = {key for options in EXAMPLES[name] for key in options}
        assert given == set(options_of(name)), f"all options of {name} are tried"


@each
@pytest.mark.parametrize("size", [6, 48, 500])
def test_shards_hold_rows_of_the_pool_each_once_unless_stated(
    name: str, options: dict[str, Any], size: int
) -> None:
    data = pool(size)
    clients = NATURAL if size > NATURAL else 2
    if name == "natural":
        clients = NATURAL
    shards = split(name, data, clients, seed=3, **options)
    assert len(shards) == clients
    for shard in shards:
        assert np.issubdtype(shard.dtype, np.integer)
        assert len(shard)
        assert shard.min() >= 0
        assert shard.max() < size
    times = Counter(chain.from_iterable(shard.tolist() for shard in shards))
    if name not in REPEATING:
        assert times == Counter(range(size))
        return
    assert data.labels is not None
    for row, count in times.items():  # a row repeats only when its whole class is used up
        if count > 1:
            assert set(np.flatnonzero(data.labels == data.labels[row]).tolist()) <= set(times)


@each
def test_the_seed_decides_and_nothing_else(name: str, options: dict[str, Any]) -> None:
    data = pool(300)
    first = split(name, data, NATURAL, seed=1, **options)
    np.random.seed(7)
    split(name, data, NATURAL, seed=2, **options)
    again = split(name, data, NATURAL, seed=1, **options)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@each
@pytest.mark.parametrize("size", [0, 1, 5, 18])
def test_every_client_has_examples_or_the_split_is_refused_in_one_line(
    name: str, options: dict[str, Any], size: int
) -> None:
    """All numbers of clients from none to more than there are examples."""
    for clients in range(size + 3):
        shards: list[np.ndarray] = []
        refusal = ""
        try:
            shards = split(name, pool(size), clients, seed=4, **options)
        except HoflError as error:
            refusal = str(error)
        if refusal:
            assert "\n" not in refusal
        else:
            assert len(shards) == clients > 0
            assert all(len(shard) for shard in shards)
