"""Paired differences: intervals against SciPy, and their coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from hofl.core.paired import difference
from hofl.core.tails import t_quantile


@pytest.mark.parametrize("freedom", [1.0, 2.0, 4.5, 29.0, 1000.0])
def test_quantiles_are_scipys(freedom: float) -> None:
    for tail in (0.4, 0.05, 0.025, 0.001):
        assert t_quantile(tail, freedom) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-10)


def test_interval_and_p_value_over_seeds_are_scipys() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.normal(0.7, 0.02, size=(5, 1)), rng.normal(0.68, 0.02, size=(5, 1))
    found = difference(first, second)
    expected = stats.ttest_rel(first[:, 0], second[:, 0])
    assert found.two_sided == pytest.approx(expected.pvalue, rel=1e-9)
    for level in (0.9, 0.95, 0.99):
        assert found.interval(level) == pytest.approx(tuple(expected.confidence_interval(level)))


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_seeded_difference_lies_in_the_interval_as_often_as_it_says(seeds: int) -> None:
    """500 comparisons with a known difference of 1.5 points between paired accuracies.

    A seed's luck is shared by both methods, on top of it each has its own, and accuracies are
    rounded to a test set of 872 examples, as on SST-2. At 95 %, 475 of 500 are expected, with a
    deviation of 4.9.
    """
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(500):
        luck = 0.03 * rng.normal(size=(seeds, 1))
        first, second = (0.01 * rng.normal(size=(seeds, 1)) for _ in range(2))
        scores = (0.815 + luck + first, 0.8 + luck + second)
        measured = difference(*(np.round(872 * one) / 872 for one in scores))
        low, high = measured.interval(0.95)
        covered += low <= 0.015 <= high
    assert covered >= 465
    assert covered < 500, "an interval that always holds says nothing"


def test_pairs_that_all_say_the_same_have_no_width() -> None:
    found = difference(np.array([[2.0], [3.0]]), np.array([[1.0], [2.0]]))
    assert found.interval() == (1.0, 1.0)
    assert found.two_sided == 0
    nothing = difference(np.ones((3, 1)), np.ones((3, 1)))
    assert nothing.interval() == (0.0, 0.0)
    assert nothing.two_sided == 1
