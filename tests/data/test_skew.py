"""Partitions other than IID: the laws they follow, what they keep, what they refuse."""

from collections import Counter
from itertools import chain, product

import numpy as np
import pytest
from scipy import stats

from hofl.core.errors import HoflError
from hofl.data.partition import (
    PARTITIONS,
    Pool,
    class_proportions,
    largest_remainder,
    options_of,
    split,
)

SIZES = (500, 300, 700, 500)
LABELS = np.random.Generator(np.random.Philox(3)).permutation(np.repeat(range(4), SIZES))
POOL = Pool(2000, LABELS, owners=np.arange(2000) % 25)
OWN = {"dirichlet": {"alpha": 0.3}, "quantity": {"alpha": 0.5}}


def table(shards: list[np.ndarray]) -> np.ndarray:
    return np.array([np.bincount(LABELS[shard], minlength=4) for shard in shards])


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    options = OWN.get(name, {})
    first = split(name, POOL, 25, seed=1, **options)
    np.random.seed(0)
    again = split(name, POOL, 25, seed=1, **options)
    other = split(name, POOL, 25, seed=2, **options)
    assert len(first) == 25
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(np.array_equal(shard, np.sort(shard)) and len(shard) for shard in first)
    if name != "natural":
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["iid", "quantity", "label-shards", "natural"])
def test_every_example_belongs_to_exactly_one_client(name: str) -> None:
    shards = split(name, POOL, 25, seed=5, **OWN.get(name, {}))
    assert sorted(chain.from_iterable(shards)) == list(range(2000))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 100.0])
def test_dirichlet_shares_are_rounded_and_duplicates_mean_an_exhausted_class(alpha: float) -> None:
    shards = split("dirichlet", POOL, 20, seed=9, alpha=alpha, per_client=90)
    assert [len(shard) for shard in shards] == [90] * 20
    counts = table(shards)
    shares = np.array([class_proportions(9, client, alpha, 4) for client in range(20)])
    assert np.abs(counts - 90 * shares).max() < 1
    seen = Counter(chain.from_iterable(shards))
    for label, size in enumerate(SIZES):
        distinct = sum(LABELS[row] == label for row in seen)
        assert distinct == min(counts[:, label].sum(), size), "a pool is used up before repeats"


def test_dirichlet_uses_what_is_left_before_it_repeats_within_one_client() -> None:
    """Eight examples of two classes, one client of twelve: each is there, some again."""
    pool = Pool(8, np.array([0, 1] * 4))
    (shard,) = split("dirichlet", pool, 1, seed=0, alpha=1e5, per_client=12)
    assert set(shard.tolist()) == set(range(8))
    assert len(shard) == 12
    assert abs(np.sum(shard % 2) - 6) <= 1


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_a_class_share_follows_its_beta_law(alpha: float) -> None:
    """A component of Dir(alpha 1_4) is Beta(alpha, 3 alpha); rounding to 1/10,000 is invisible."""
    pool = Pool(400, np.arange(400) % 4)
    shards = split("dirichlet", pool, 600, seed=4, alpha=alpha, per_client=10_000)
    shares = np.array([np.bincount(shard % 4, minlength=4) for shard in shards]) / 10_000
    law = stats.beta(alpha, 3 * alpha)
    for share in shares.T:
        # within rounding: the law's own value anywhere in the interval of a rounded share
        low, high = law.cdf(share - 1e-4), law.cdf(share + 1e-4)
        empirical = stats.rankdata(share, method="average") / 601
        off = np.maximum(np.maximum(low - empirical, empirical - high), 0).max()
        assert off < 1.95 / np.sqrt(600), "Kolmogorov-Smirnov at 0.1 %"


def test_replenished_examples_are_drawn_evenly() -> None:
    """Fifty examples of one class, 20,000 drawn beyond the pool: each 400 times, give or take."""
    pool = Pool(51, np.array([0] * 50 + [1]))
    shards = split("dirichlet", pool, 1, seed=8, alpha=1e6, per_client=40_100)
    counts = np.bincount(shards[0], minlength=51)[:50]
    draws = counts.sum() - 50
    assert stats.chisquare(counts - 1).pvalue > 1e-3
    assert abs(draws - 20_000) < 200


def test_a_clients_classes_do_not_depend_on_how_many_clients_there_are() -> None:
    few = split("dirichlet", POOL, 3, seed=7, alpha=0.5, per_client=50)
    many = split("dirichlet", POOL, 30, seed=7, alpha=0.5, per_client=50)
    assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))


def test_dirichlet_deals_equal_shares_of_the_data_by_default() -> None:
    assert {len(shard) for shard in split("dirichlet", POOL, 30, seed=0, alpha=1.0)} == {66}


@pytest.mark.parametrize("alpha", [0.2, 5.0])
def test_quantity_sizes_are_at_least_one_and_spread_by_alpha(alpha: float) -> None:
    sizes = np.array([len(s) for s in split("quantity", POOL, 100, seed=3, alpha=alpha)])
    assert sizes.min() >= 1
    assert sizes.sum() == 2000
    # 1 + 1900 p with p ~ Dir(alpha 1_N): the standard deviation of N p is sqrt((N-1)/(N alpha+1))
    law = 19 * np.sqrt(99 / (100 * alpha + 1))
    assert sizes.std() == pytest.approx(law, rel=0.3)


def test_label_shards_hold_few_classes_each() -> None:
    shards = split("label-shards", POOL, 20, seed=1, shards_per_client=2)
    held = (table(shards) > 0).sum(1)
    # 40 shards of 50: of the four classes (500, 300, 700, 500) each fills whole shards
    assert held.max() <= 2
    assert {len(shard) for shard in shards} == {100}
    assert (table(split("label-shards", POOL, 20, seed=1, shards_per_client=1)) > 0).sum(
        1
    ).max() == 1


@pytest.mark.parametrize("total", [0, 1, 7, 10])
def test_largest_remainder_is_the_nearest_whole_division(total: int) -> None:
    rng = np.random.Generator(np.random.Philox(total))
    for _ in range(20):
        shares = rng.dirichlet(np.full(3, 0.5))
        counts = largest_remainder(shares, total)
        assert counts.sum() == total
        ways = [way for way in product(range(total + 1), repeat=3) if sum(way) == total]
        best = min(np.abs(np.array(way) - shares * total).sum() for way in ways)
        assert np.abs(counts - shares * total).sum() == pytest.approx(best)


@pytest.mark.parametrize(
    ("name", "clients", "options", "message"),
    [
        ("dirichlet", 10, {"alpha": 0.0}, "alpha must be positive"),
        ("dirichlet", 10, {"alpha": -1.0}, "alpha must be positive"),
        ("dirichlet", 10, {"alpha": float("nan")}, "alpha must be positive"),
        ("quantity", 10, {"alpha": float("inf")}, "alpha must be positive and at most 1e+06"),
        ("dirichlet", 2001, {}, "2001 clients cannot share 2000 examples"),
        ("dirichlet", 10, {"per_client": 0}, "per_client must be at least 1"),
        ("quantity", 2001, {}, "2001 clients cannot share 2000 examples"),
        ("label-shards", 1001, {}, "1001 clients with 2 shards each"),
        ("label-shards", 10, {"shards_per_client": 0}, "must be at least 1, got 0"),
        ("natural", 24, {}, "the data belong to 25 clients, and the fleet has 24"),
        ("iid", 0, {}, "at least 1 client"),
        ("iid", 10, {"alpha": 1.0}, "'iid' does not take alpha: it takes no options"),
        ("dirichlet", 5, {"shards_per_client": 2}, "it takes alpha, per_client"),
        ("zipf", 5, {}, "unknown partition 'zipf': choose one of iid, dirichlet"),
    ],
)
def test_a_mistake_is_one_clear_error(
    name: str, clients: int, options: dict[str, float], message: str
) -> None:
    with pytest.raises(HoflError) as refusal:
        split(name, POOL, clients, 0, **options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["dirichlet", "label-shards"])
def test_label_skew_without_classes_is_refused(name: str) -> None:
    with pytest.raises(HoflError, match=f"'{name}' splits by label, and this task has no classes"):
        split(name, Pool(100), 5, 0)


def test_natural_clients_need_data_that_name_them() -> None:
    with pytest.raises(HoflError, match="needs data with a client column or one file per client"):
        split("natural", Pool(100), 5, 0)


def test_options_that_are_none_are_not_given() -> None:
    assert options_of("dirichlet") == ("alpha", "per_client")
    plain = split("iid", POOL, 5, 0)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(split("iid", POOL, 5, 0, alpha=None), plain, strict=True)
    )
