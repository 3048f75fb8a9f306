"""Sampling: DepRound's laws by counting draws, and the dimension-aware shares by hand."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hofl.core.errors import HoflError
from hofl.sampling.depround import depround
from hofl.sampling.policies import DimensionAware, Uniform, draw_cohort
from support.depround_law import covariance, depround_law, is_uniform

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


EXACT = {
    "uneven": [Fraction(k, 20) for k in (19, 3, 7, 1, 10)],
    "equal": [Fraction(2, 5)] * 5,
    "certain": [Fraction(1), Fraction(0), Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)],
    "two tiers": [Fraction(4, 5)] * 2 + [Fraction(2, 15)] * 3,
}


@pytest.mark.parametrize("x", EXACT.values(), ids=EXACT.keys())
def test_cohorts_have_the_law_of_the_papers_algorithm(x: list[Fraction]):
    """Against the algorithm enumerated in exact fractions; one wrong branch shifts this law."""
    law = depround_law(x)
    for i, share in enumerate(x):
        assert sum(q for cohort, q in law.items() if i in cohort) == share
    assert (covariance(law, len(x)) - np.eye(len(x)) <= 1e-15).all(), "pairs never go together"
    rng = np.random.default_rng(4)
    values = np.array(x, dtype=float)
    counts = Counter(tuple(depround(values, rng).tolist()) for _ in range(DRAWS))
    assert set(counts) <= set(law)
    expected = {cohort: float(q) * DRAWS for cohort, q in law.items()}
    statistic = sum((counts[cohort] - mean) ** 2 / mean for cohort, mean in expected.items())
    assert stats.chi2.sf(statistic, len(law) - 1) > 1e-5


@pytest.mark.parametrize(("clients", "size"), [(4, 1), (4, 2), (5, 2), (5, 4), (6, 3)])
def test_equal_probabilities_make_all_subsets_exactly_equally_likely(clients: int, size: int):
    assert is_uniform(depround_law([Fraction(size, clients)] * clients), clients, size)


class Fixed:
    """A generator that keeps the order and always draws the same number."""

    def __init__(self, draw: float) -> None:
        self._draw = draw

    def permutation(self, size: int) -> np.ndarray:
        return np.arange(size)

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self._draw)


def test_the_smallest_shares_of_a_large_fleet_are_not_rounded_away():
    """K p_i of 1e-9 is real: with the one draw in a billion the rare client must be chosen."""
    x = np.array([1 - 3e-9, 1e-9, 1e-9, 1e-9])
    assert depround(x, Fixed(1 - 1e-12)).tolist() == [3]
    assert depround(x, Fixed(0.5)).tolist() == [0]


@pytest.mark.parametrize("x", [[1, 0, 1, 0], [0, 0], [1, 1, 1], [1], []])
def test_whole_probabilities_leave_nothing_to_chance(x: list[int]):
    for seed in range(5):
        chosen = depround(np.array(x, dtype=float), np.random.default_rng(seed))
        assert chosen.tolist() == [i for i, value in enumerate(x) if value == 1]


def test_many_clients_are_an_ordinary_input():
    p = DimensionAware(0.9).marginals(np.arange(1e6), 1000, seed=0)
    chosen = draw_cohort(p, 1000, seed=0, round_number=0)
    assert len(set(chosen)) == 1000
    preferred = sum(client < 1000 for client in chosen)  # each is in with probability 0.9001
    assert abs(preferred - 900.1) < 4.5 * (1000 * 0.9001 * 0.0999) ** 0.5


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
    # "With three equally sized resource tiers, their expected per-round counts are 4/1/1 at
    # beta=0.5 and 5/0.5/0.5 at 0.75, ordered from the smallest to the largest ZO segment."
    p = DimensionAware(beta).marginals(TIERS, 6, seed=0)
    np.testing.assert_allclose((6 * p).reshape(3, 10).sum(axis=1), expected, rtol=1e-12)


@pytest.mark.parametrize(("beta", "participations"), [(0.25, 24), (0.5, 16), (0.75, 8)])
def test_others_take_part_as_often_as_the_paper_says(beta: float, participations: float):
    # "For our N=30, K=6, and T=160 setting, beta=0.25,0.5,0.75 correspond to 24,16,8 expected
    # participations per nonpreferred client."
    expected = 160 * 6 * DimensionAware(beta).marginals(TIERS, 6, seed=0)
    others = np.sort(expected)[:24]
    np.testing.assert_allclose(others, participations, rtol=1e-12)
    assert (np.sort(expected)[24:] > 32).all(), "the preferred six take part more than uniformly"


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


@pytest.mark.parametrize(
    ("p", "cohort", "message"),
    [
        ([0.5, 0.5], 3, "cohort of 3 cannot be drawn from 2 clients"),
        ([0.5, 0.5], 0, "cohort of 0 cannot be drawn"),
        ([0.6, 0.2, 0.2], 2, r"\[0, 1/K\] = \[0, 0\.5\]: entry 0 is 0\.6"),
        ([0.3, -0.1, 0.4, 0.4], 2, r"entry 1 is -0\.1"),
        ([0.3, np.nan, np.nan, 0.4], 2, r"entry 1 is nan \(and 1 more\)"),
        ([0.3, 0.3, 0.3], 2, r"sum to 1, got 0\.9 over 3 clients"),
    ],
)
def test_shares_no_draw_can_realise_are_refused_by_entry(p: list, cohort: int, message: str):
    with pytest.raises(HoflError, match=message):
        draw_cohort(np.array(p), cohort, seed=0, round_number=0)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, np.nan, 2.0], "entry 1 is nan"),
        ([1.0, 2.0, -3.0], "not negative: entry 2 is -3"),
        ([np.inf, 2.0, 3.0], "entry 0 is inf"),
        ([[1.0, 2.0]], "scores must be a vector"),
        ([1.0], "cohort of 2 cannot be drawn from 1 clients"),
    ],
)
def test_bad_scores_are_refused_by_entry(scores: list, message: str):
    with pytest.raises(HoflError, match=message):
        DimensionAware(0.5).marginals(np.array(scores), 2, seed=0)
