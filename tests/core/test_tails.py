"""Tail probabilities against SciPy's."""

import pytest
from scipy import special, stats

from hofl.core.tails import upper_gamma, upper_t


@pytest.mark.parametrize("a", [0.25, 0.5, 0.75, 1, 2.5, 7.5, 30, 250, 2500, 250_000])
def test_chi_squares_tail_is_scipys(a: float):
    for factor in (1e-9, 0.01, 0.5, 0.9, 0.99, 1, 1.01, 1.1, 2, 5, 40):
        ours, theirs = upper_gamma(a, a * factor), special.gammaincc(a, a * factor)
        assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-13)
    assert upper_gamma(a, 0.0) == 1


@pytest.mark.parametrize("freedom", [1.0, 1.7, 2.0, 5.5, 29.0, 400.0])
def test_students_tail_is_scipys(freedom: float) -> None:
    for t in (-9.0, -1.3, 0.0, 0.2, 1.0, 2.5, 12.0, 80.0):
        assert upper_t(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-10, abs=1e-300)
