"""Sampling: DepRound's laws by counting draws, and the dimension-aware shares by hand."""

import itertools
from collections import Counter

import numpy as np
import pytest

from hofl.errors import HoflError
from hofl.sampling.depround import depround
from hofl.sampling.policies import DimensionAware, Uniform, draw_cohort

DRAWS = 20_000
UNEVEN = np.array([0.9, 0.03, 0.75, 0.35, 0.5, 0.15, 0.25, 0.07])  # sums to 3
TIERS = np.repeat([100.0, 200.0, 300.0], 10)


@pytest.fixture(scope="module")
def membership() -> np.ndarray:
    """Who was chosen in each of 20,000 draws from UNEVEN, 0 or 1 [draws, clients]."""
    rng = np.random.default_rng(1)
    chosen = np.zeros((DRAWS, len(UNEVEN)))
    for row in chosen:
        row[depround(UNEVEN, rng)] = 1
    return chosen


def random_marginals(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Inclusion probabilities of all sizes, some exactly 0 or 1, with whole sum."""
    clients = int(rng.integers(1, 60))
    x = rng.choice([0.0, 1.0, 0.5, rng.random(), rng.random() ** 9], size=clients)
    rest = np.ceil(x.sum()) - x.sum()
    return np.append(x, rest), round(x.sum() + rest)


def test_draw_always_has_exactly_k_distinct_clients(membership: np.ndarray):
    assert (membership.sum(axis=1) == 3).all()
    rng = np.random.default_rng(2)
    for _ in range(3000):
        x, size = random_marginals(rng)
        chosen = depround(x, rng)
        assert len(set(chosen.tolist())) == len(chosen) == size
        assert chosen.tolist() == sorted(chosen.tolist())
        assert (x[chosen] > 0).all()
        assert set(np.flatnonzero(x == 1)) <= set(chosen)


def test_clients_are_chosen_as_often_as_their_probability_says(membership: np.ndarray):
    standard_error = np.sqrt(UNEVEN * (1 - UNEVEN) / DRAWS)
    assert (np.abs(membership.mean(axis=0) - UNEVEN) < 4.5 * standard_error).all()


def test_no_pair_is_positively_correlated(membership: np.ndarray):
    centred = membership - UNEVEN
    for i, j in itertools.combinations(range(len(UNEVEN)), 2):
        products = centred[:, i] * centred[:, j]
        assert products.mean() < 4.5 * products.std() / DRAWS**0.5


def test_equal_probabilities_choose_every_subset_equally_often():
    rng = np.random.default_rng(3)
    counts = Counter(tuple(depround(np.full(6, 0.5), rng).tolist()) for _ in range(DRAWS))
    subsets = list(itertools.combinations(range(6), 3))
    assert set(counts) == set(subsets)
    expected = DRAWS / len(subsets)
    statistic = sum((counts[subset] - expected) ** 2 / expected for subset in subsets)
    assert statistic < 57.4  # chi-square with 19 degrees of freedom exceeds it once in 100,000


@pytest.mark.parametrize("x", [[1, 0, 1, 0], [0, 0], [1, 1, 1], [1], []])
def test_whole_probabilities_leave_nothing_to_chance(x: list[int]):
    for seed in range(5):
        chosen = depround(np.array(x, dtype=float), np.random.default_rng(seed))
        assert chosen.tolist() == [i for i, value in enumerate(x) if value == 1]


def test_many_clients_are_an_ordinary_input():
    p = DimensionAware(0.9).marginals(np.arange(200_000.0), 1000, seed=0)
    chosen = draw_cohort(p, 1000, seed=0, round_number=0)
    assert len(set(chosen)) == 1000
    preferred = sum(client < 1000 for client in chosen)  # each is in with probability 0.9005
    assert abs(preferred - 900.5) < 4.5 * (1000 * 0.9005 * 0.0995) ** 0.5


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([0.5, 0.5, 1.2, 0.8], r"entry 2 is 1\.2"),
        ([0.5, -0.25, 0.75], r"entry 1 is -0\.25"),
        ([0.5, 0.5, 0.5, np.nan], "entry 3 is nan"),
        ([np.inf, 0.5], "entry 0 is inf"),
        ([0.5, 0.4], r"whole number, got 0\.9"),
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
    ],
)
def test_error_names_what_is_wrong(x: list, message: str):
    with pytest.raises(ValueError, match=message):
        depround(np.array(x), np.random.default_rng(0))


@pytest.mark.parametrize("x", [[[0.5, 2.0]], 2.0])
def test_bad_value_in_what_is_no_vector_is_an_ordinary_error(x: list | float):
    with pytest.raises(ValueError, match="must be a vector"):
        depround(np.array(x), np.random.default_rng(0))


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.75, 0.99])
@pytest.mark.parametrize(("clients", "cohort"), [(30, 6), (7, 1), (12, 12), (100, 33)])
def test_dimension_aware_shares_have_the_papers_properties(beta: float, clients: int, cohort: int):
    scores = np.random.default_rng(clients).integers(0, 5, clients).astype(float)
    p = DimensionAware(beta).marginals(scores, cohort, seed=3)
    assert abs(p.sum() - 1) < 1e-12
    assert (p <= 1 / cohort + 1e-15).all()
    assert (p >= (1 - beta) / clients - 1e-15).all()
    distance = clients * np.sum((p - 1 / clients) ** 2)
    assert abs(distance - beta**2 * (clients / cohort - 1)) < 1e-12
    for i, j in itertools.permutations(range(clients), 2):
        assert scores[i] >= scores[j] or p[i] >= p[j] - 1e-15, "less noise, never a smaller share"


@pytest.mark.parametrize(("beta", "expected"), [(0.5, [4, 1, 1]), (0.75, [5, 0.5, 0.5])])
def test_three_equal_tiers_are_met_as_the_paper_says(beta: float, expected: list[float]):
    p = DimensionAware(beta).marginals(TIERS, 6, seed=0)
    np.testing.assert_allclose((6 * p).reshape(3, 10).sum(axis=1), expected, rtol=1e-12)


def test_ties_are_fixed_by_the_seed_and_differ_between_seeds():
    policy = DimensionAware(0.5)
    shares = [policy.marginals(TIERS, 6, seed) for seed in range(40)]
    for seed, p in enumerate(shares):
        assert np.array_equal(policy.marginals(TIERS, 6, seed), p)
    preferred = [frozenset(np.flatnonzero(p > p.min()).tolist()) for p in shares]
    assert all(len(group) == 6 and group < set(range(10)) for group in preferred)
    assert len(set(preferred)) > 20
    assert frozenset.union(*preferred) == set(range(10)), "no client of the tier is left out"


@pytest.mark.parametrize("policy", [Uniform(), DimensionAware(0.75), DimensionAware(0.0)], ids=repr)
def test_equal_scores_are_sampled_uniformly(policy: Uniform | DimensionAware):
    assert policy.marginals(np.full(8, 640.0), 3, seed=1).tolist() == [0.125] * 8


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_beta_out_of_range_is_refused(beta: float):
    with pytest.raises(HoflError, match=f"beta .*got {beta}"):
        DimensionAware(beta)


def test_cohort_is_fixed_by_seed_and_round_alone():
    p = DimensionAware(0.5).marginals(TIERS, 6, seed=9)
    forward = [draw_cohort(p, 6, 9, t) for t in range(50)]
    backward = [draw_cohort(p, 6, 9, t) for t in reversed(range(50))]
    assert forward == backward[::-1]
    assert len(set(map(tuple, forward))) > 45
    assert forward != [draw_cohort(p, 6, 10, t) for t in range(50)]


def test_cohorts_over_the_rounds_follow_the_shares():
    p = DimensionAware(0.75).marginals(TIERS, 6, seed=5)
    rounds = 5000
    counts = np.bincount([i for t in range(rounds) for i in draw_cohort(p, 6, 5, t)], minlength=30)
    standard_error = np.sqrt(6 * p * (1 - 6 * p) / rounds)
    assert (np.abs(counts / rounds - 6 * p) < 4.5 * standard_error).all()
