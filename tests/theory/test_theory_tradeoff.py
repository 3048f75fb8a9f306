"""The bound against beta: what skew costs, the best beta, and where the assumptions fail."""

import itertools
import math

import numpy as np
import pytest

from hofl.sampling.policies import DimensionAware
from hofl.theory import rate
from hofl.theory.assumptions import Constants
from hofl.theory.tradeoff import (
    Point,
    conditions,
    formal_curve,
    informal_curve,
    own_floor_zeros,
    point,
)

TIERS = np.repeat([8.0, 16.0, 24.0], 10)
BETAS = np.linspace(0, 0.9, 91)


def points(dims: np.ndarray, q: int = 2, cohort: int = 6) -> list[Point]:
    shares = [DimensionAware(beta).marginals(dims / q, cohort, 0) for beta in BETAS]
    return [point(b, p, dims, q, cohort) for b, p in zip(BETAS, shares, strict=True)]


def test_beta_costs_beta_squared_times_n_over_k_minus_one():
    for x in points(TIERS):
        assert x.skew == pytest.approx(x.beta**2 * (30 / 6 - 1), abs=1e-12)
        assert x.dimension == pytest.approx(1 + (16 - 8 * x.beta) / 2)
        assert x.least == pytest.approx(1 - x.beta)


@pytest.mark.parametrize("per_block", [1, 40, 38_912])
def test_the_best_beta_falls_as_the_clients_disagree_more(per_block: int):
    """At the shortest horizon the theorem covers, from the largest beta down to nearly none."""
    sweep = points(TIERS * per_block)
    plain = Constants()
    zero = rate.c_0(plain, 30, 0.1)
    rounds = rate.horizon(rate.c_star(plain, 30, 0.1, zero), sweep[0].dimension)
    zetas = [0, 1e-3, 1e-2, 1e-1, 1, 10]
    best = [formal_curve(sweep, Constants(heterogeneity=z), rounds, zero).best() for z in zetas]
    assert best[0] == pytest.approx(0.9)
    assert best[-1] < 0.05
    assert all(a >= b for a, b in itertools.pairwise(best))
    informal = [informal_curve(sweep, z, sweep[0].dimension).best() for z in zetas]
    assert informal[0] == pytest.approx(0.9)
    assert informal[-1] < 0.05
    assert all(a >= b for a, b in itertools.pairwise(informal))


def test_best_beta_is_the_stationary_point_of_the_closed_form():
    """sqrt(D/T) + zeta^2 chi^2 with D = a - b beta: -b / (2 sqrt(D T)) + 8 zeta^2 beta = 0."""
    sweep = points(TIERS)
    best = informal_curve(sweep, 0.05, 100.0).best()
    slope = -4 / (2 * math.sqrt((9 - 4 * best) * 100)) + 8 * 0.05 * best
    neighbours = [
        -4 / (2 * math.sqrt((9 - 4 * b) * 100)) + 0.4 * b for b in (best - 0.01, best + 0.01)
    ]
    assert neighbours[0] < 0 < neighbours[1]
    assert abs(slope) < 0.01


def test_each_policys_own_floor_makes_the_formal_bound_grow_with_beta():
    """At zeta = 0, epsilon = 1 - beta in C_0 outweighs the smaller dimension (docs/theory.md)."""
    sweep, plain = points(TIERS * 38_912), Constants()
    own = formal_curve(sweep, plain, 1e20, own_floor_zeros(sweep, plain, 30))
    assert own.best() == 0
    assert (np.diff(own.total) > 0).all()
    free = formal_curve(sweep, plain, 1e20, rate.c_0_coverage_free(plain, 30))
    assert free.best() == pytest.approx(0.9)


def test_failing_assumptions_are_named():
    sweep = points(TIERS)
    skewed, plain = sweep[-1], Constants(affine=0.05)
    holds = {c.name.split()[0]: c.holds for c in conditions(skewed, plain, 30, 0.1, 160, mu=1e-3)}
    assert holds == {
        "coverage": True,
        "capacity": True,
        "skew": False,  # 0.05 * 0.81 * 4 = 0.162
        "horizon": False,
        "radius": True,
    }
    assert not conditions(skewed, plain, 30, 0.2, 160)[0].holds
    long = conditions(sweep[0], Constants(), 30, 0.1, 1e14, mu=1.0)
    assert [c.holds for c in long] == [True, True, True, True, False]
