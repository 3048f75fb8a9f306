"""The audit: calm about DepRound, alarmed by samplers that are not what they say."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from hofl.sampling.audit import audit, compare, verdict
from hofl.sampling.policies import DimensionAware, draw_cohort
from support.depround_law import covariance, depround_law

K, T = 6, 160
TIERS = np.repeat([100.0, 200.0, 300.0], 10)
UNEVEN = DimensionAware(0.75).marginals(TIERS, K, seed=0)
Sampler = Callable[[np.random.Generator], list[int]]


@pytest.fixture(scope="module")
def null_p_values() -> np.ndarray:
    """p-values of 150 honest runs under each of three policies."""
    values = []
    for beta in (0.0, 0.5, 0.75):
        p = DimensionAware(beta).marginals(TIERS, K, seed=0)
        for seed in range(150):
            values.append(audit((draw_cohort(p, K, seed, t), p) for t in range(T // 4)).p_value)
    return np.array(values)


def test_honest_runs_are_rarely_alarming_and_not_all_perfect(null_p_values: np.ndarray):
    for level in (0.001, 0.01, 0.05, 0.1):
        allowed = level + 4 * np.sqrt(level * (1 - level) / len(null_p_values))
        assert (null_p_values <= level).mean() <= allowed
    assert 0.3 < np.median(null_p_values) < 0.7
    assert (null_p_values < 0.2).mean() > 0.02, "conservative, yet not blind"


WRONG: dict[str, Sampler] = {
    "uniform draws": lambda rng: rng.permutation(30)[:K].tolist(),
    "sequential weighted draws": lambda rng: rng.choice(30, K, replace=False, p=UNEVEN).tolist(),
    "the same cohort each time": lambda rng: draw_cohort(UNEVEN, K, 1, 0),
    "the shares of other clients": lambda rng: draw_cohort(
        UNEVEN[::-1], K, int(rng.integers(1e9)), 0
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_detected(name: str):
    rng = np.random.default_rng(0)
    result = audit((WRONG[name](rng), UNEVEN) for _ in range(T))
    assert result.p_value < 1e-4
    assert "NOT as the policy says" in verdict(result.summary())


def test_counts_are_compared_with_the_shares_of_their_own_round():
    policy = DimensionAware(0.0, "linear", 0.9)
    shares = [policy.marginals(TIERS, K, 0, t, T) for t in range(T)]
    cohorts = [draw_cohort(p, K, 4, t) for t, p in enumerate(shares)]
    result = audit(zip(cohorts, shares, strict=True))
    np.testing.assert_allclose(result.expected, K * sum(shares))
    assert result.realised.tolist() == np.bincount(np.concatenate(cohorts), minlength=30).tolist()
    assert result.p_value > 0.01
    constant = audit((cohort, shares[0]) for cohort in cohorts)
    assert constant.p_value < 1e-4


EXACT = {
    "uneven": [Fraction(k, 20) for k in (19, 3, 7, 1, 10)],
    "equal": [Fraction(2, 5)] * 5,
    "one against the rest": [Fraction(1, 2), Fraction(1, 2)],
    "two tiers": [Fraction(4, 5)] * 2 + [Fraction(2, 15)] * 3,
}


@pytest.mark.parametrize("x", EXACT.values(), ids=EXACT.keys())
def test_no_direction_of_the_counts_varies_twice_as_much_as_the_reference_allows(
    x: list[Fraction],
):
    """The eigenvalues behind the reference, from the exact law of DepRound; 2 is attained."""
    spread = covariance(depround_law(x), len(x))
    scale = np.sqrt(np.diag(spread))
    eigenvalues = np.linalg.eigvalsh(spread / np.outer(scale, scale))
    assert eigenvalues.max() <= 2 + 1e-12
    assert eigenvalues.sum() == pytest.approx(len(x))
    if len(x) == 2:
        assert eigenvalues.max() == pytest.approx(2)


def test_clients_with_small_counts_are_pooled_with_their_like():
    p = np.full(100, 0.01)  # V_i = 0.09 in each round: 23 rounds give 2.07, three clients a group
    result = audit((draw_cohort(p, 10, 0, t), p) for t in range(23))
    assert result.groups == 33
    assert result.p_value > 0.01


def test_too_few_rounds_say_nothing():
    p = np.full(6, 1 / 6)
    result = audit((draw_cohort(p, 3, 0, t), p) for t in range(3))
    assert (result.groups, result.p_value, result.statistic) == (0, 1.0, 0.0)
    assert "too few rounds" in verdict(result.summary())


def test_what_cannot_happen_is_named():
    p = np.array([0.5, 0.25, 0.25, 0.0])
    result = audit([((0, 1), p)] * 40 + [((0, 3), p)])
    assert result.impossible == (3,)
    assert result.p_value == 0
    assert "impossible participation of client 3" in verdict(result.summary())


def test_statistic_is_the_sum_of_standardised_squares():
    expected, variance = np.array([20.0, 30.0, 50.0]), np.array([10.0, 20.0, 25.0])
    result = compare(expected, variance, np.array([25, 20, 55]))
    assert result.statistic == pytest.approx(25 / 10 + 100 / 20 + 25 / 25)
    assert result.p_value == pytest.approx(special.gammaincc(3 / 4, 8.5 / 4))
