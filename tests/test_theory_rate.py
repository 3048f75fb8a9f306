"""The formal theorem: constants against the proof's own chain, special cases, the trade-off."""

import itertools
import math

import numpy as np
import pytest

from hofl.errors import HoflError
from hofl.sampling.policies import DimensionAware
from hofl.theory import rate, trajectory
from hofl.theory.assumptions import Constants
from hofl.theory.descent import round_variance_bound
from hofl.theory.moments import kappa, nu, rho_squared
from hofl.theory.tradeoff import (
    Point,
    conditions,
    formal_curve,
    informal_curve,
    own_floor_zeros,
    point,
    special_cases,
)

TIERS = np.repeat([8.0, 16.0, 24.0], 10)
BETAS = np.linspace(0, 0.9, 91)


def points(dims: np.ndarray, q: int = 2, cohort: int = 6) -> list[Point]:
    shares = [DimensionAware(beta).marginals(dims / q, cohort, 0) for beta in BETAS]
    return [point(b, p, dims, q, cohort) for b, p in zip(BETAS, shares, strict=True)]


def test_constants_of_a_small_fleet_worked_by_hand():
    """N = 2, L = L_s = sigma^2 = 1, eps = 1/2, a_H = 0, zeta^2 = 2, Delta = 3."""
    constants = Constants(heterogeneity=2.0, gap=3.0)
    zero = 1 + (30 + 24) * (64 + 8 + 2) + 108 + 12
    assert rate.c_0(constants, 2, 0.5) == zero == 4117
    assert rate.c_star(constants, 2, 0.5, zero) == 144 * 4117**2
    assert rate.c_rate(constants, zero) == 12 + 20 * 4117
    p, dims = np.array([0.75, 0.25]), np.array([4, 12])
    assert rate.weighted_dimension(p, dims, 2) == 1 + (3 + 3) / 2
    assert rate.m_p(p, dims) == 0.75 * 4 * 6 * 8 + 0.25 * 12 * 14 * 16
    assert rate.chi_squared(p) == 2 * (1 / 16 + 1 / 16)
    assert rate.step_size(5, 100, 4.0) == 1 / (5 * 20)
    assert rate.radius(64, 4.0, 816) == pytest.approx(0.5 / math.sqrt(816), rel=1e-15)
    expected = (12 + 20 * 4117) * math.sqrt(4 / 100) + 6 * 2 * 0.25
    assert rate.bound(constants, p, dims, 2, 100, 0.5) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("which", ["epsilon", "smoothness"])
def test_each_branch_of_c_star_can_decide(which: str):
    tame = Constants(smoothness=1e-9, surrogate_smoothness=0, noise=0)
    assert rate.c_star(tame, 1, 1.0, 0.0) == 1
    wild = Constants(smoothness=0.3 if which == "smoothness" else 100.0)
    reach = 2 * 4 / 0.5
    expected = {"epsilon": (reach * 100) ** 2, "smoothness": 8 * 0.09 * (1 + reach)}[which]
    bigger = max(expected, (reach * wild.smoothness) ** 2, 8 * wild.smoothness**2 * (1 + reach))
    assert rate.c_star(wild, 4, 0.5, 0.0) == pytest.approx(bigger)


@pytest.mark.parametrize("seed", range(60))
def test_the_proofs_chain_ends_below_c_0_whenever_the_horizon_holds(seed: int):
    """Bias and variance from the two lemmas at random gradients, against (affine-step-bound).

    The paper's C_0 needs the coverage floor; the coverage-free one must hold as well.
    """
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(2, 9))
    cohort, q, steps = int(rng.integers(1, clients + 1)), int(rng.integers(1, 5)), 1 + seed % 6
    constants = Constants(
        smoothness=10 ** rng.uniform(-4, 2),
        surrogate_smoothness=10 ** rng.uniform(-4, 2),
        noise=10 ** rng.uniform(-3, 3),
        affine=rng.uniform(0, 0.1),
    )
    dims = rng.choice([0, 1, 2, 50, 10_000], size=clients)
    beta = rng.uniform(0, 0.99)
    p = DimensionAware(beta).marginals(dims, cohort, seed)
    epsilon = 1 - beta
    dimension, remainder = rate.weighted_dimension(p, dims, q), rate.m_p(p, dims)
    paper = rate.c_0(constants, clients, epsilon)
    zeros = [paper, rate.c_0_coverage_free(constants, clients)]
    rounds = rate.horizon(rate.c_star(constants, clients, epsilon, min(zeros)), dimension)
    eta = rate.step_size(steps, rounds, dimension)
    mu = min(rate.radius(rounds, dimension, remainder), 1e6)
    smooth, step = constants.smoothness, eta * steps
    kappas = kappa(dims, q)
    assert smooth * step <= 1
    assert (trajectory.drift_condition(eta, steps, kappas, smooth) <= 0.5).all()
    assert smooth * eta * kappas.max() / cohort <= 1 + 1e-12
    coefficient = rate.proof_coefficient(eta, steps, cohort, dimension)
    assert coefficient <= 3 * math.sqrt(dimension / rounds) * (1 + 1e-12)
    assert min(zeros) * (1 + constants.affine) * coefficient <= 0.25 * (1 + 1e-12)

    gradients = rng.normal(size=(clients, 4)) * 10 ** rng.uniform(-2, 2, size=(clients, 1))
    mean = gradients.mean(axis=0)
    spread = float(((gradients - mean) ** 2).sum(axis=1).mean())
    squares = (gradients**2).sum(axis=1)
    rhos = rho_squared(dims, mu, constants.surrogate_smoothness)
    nus = nu(dims, q, mu, constants.surrogate_smoothness, constants.noise)
    radii = trajectory.drift_radius(eta, steps, kappas, nus, squares, squares * (dims > 0))
    local = trajectory.local_variance_bound(
        radii, rhos, kappas, nus, squares * (dims > 0), steps, smooth
    )
    # a_i = g_i + r_i with r_i as long as drift and bias can be together, in a random direction
    away = rng.normal(size=gradients.shape)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    lengths = smooth * np.sqrt(radii) + np.sqrt(rhos)
    allowed = trajectory.mean_update_error(radii, rhos, smooth)
    assert (lengths**2 <= allowed * (1 + 1e-12)).all()
    means = gradients + away * lengths[:, None]
    skew = rate.chi_squared(p)
    bias = 3 * skew * spread + p @ (3 * smooth**2 * radii + 3 * rhos)
    assert ((p @ means - mean) ** 2).sum() <= bias * (1 + 1e-9)
    common = 3 * skew * spread
    tail = coefficient * (mean @ mean + spread + 1) + mu**2 * remainder
    for zero, centre in zip(zeros, (None, mean), strict=True):
        variance = round_variance_bound(p, cohort, local, means, centre)
        assert bias + smooth * step * variance <= (common + zero * tail) * (1 + 1e-9)


def test_known_rates_are_recovered_to_rounding():
    """Uniform sampling: sqrt((1 + d/q)/T) at equal boundaries; d_ZO = 0 gives 1/sqrt(T)."""
    constants, rounds, q = Constants(heterogeneity=5.0, gap=2.0), 10_000, 2
    u = np.full(30, 1 / 30)
    factor = rate.c_rate(constants, rate.c_0(constants, 30, 1.0))
    cases = special_cases(TIERS, total=28)
    expected = {
        "HO-SFL: equal boundaries": math.sqrt((1 + 16 / q) / rounds),
        "FedAvg: d_ZO = 0": 1 / math.sqrt(rounds),
        "pure ZO: d_ZO = d": math.sqrt((1 + 28 / q) / rounds),
    }
    assert cases.keys() == expected.keys()
    for name, dims in cases.items():
        value = rate.bound(constants, u, dims, q, rounds, 1.0)
        assert value == pytest.approx(factor * expected[name], rel=1e-14)
        assert DimensionAware(0.75).marginals(dims / q, 6, 0) == pytest.approx(u, abs=0)


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
    found = informal_curve(sweep, 0.05, 100.0).best()
    slope = -4 / (2 * math.sqrt((9 - 4 * found) * 100)) + 8 * 0.05 * found
    neighbours = [
        -4 / (2 * math.sqrt((9 - 4 * b) * 100)) + 0.4 * b for b in (found - 0.01, found + 0.01)
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
    found = {c.name.split()[0]: c.holds for c in conditions(skewed, plain, 30, 0.1, 160, mu=1e-3)}
    assert found == {
        "coverage": True,
        "capacity": True,
        "skew": False,  # 0.05 * 0.81 * 4 = 0.162
        "horizon": False,
        "radius": True,
    }
    assert not conditions(skewed, plain, 30, 0.2, 160)[0].holds
    long = conditions(sweep[0], Constants(), 30, 0.1, 1e14, mu=1.0)
    assert [c.holds for c in long] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"smoothness": 0.0}, "smoothness must be positive"),
        ({"noise": -1.0}, "noise must be finite and >= 0, got -1"),
        ({"heterogeneity": math.nan}, "heterogeneity must be finite and >= 0, got nan"),
        ({"gap": math.inf}, "gap must be finite"),
    ],
)
def test_bad_constants_are_refused_by_name(values: dict[str, float], message: str):
    with pytest.raises(HoflError, match=message):
        Constants(**values)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.5, 0.6, -0.1], "entry 2 is -0.1"),
        ([0.5, 0.4, 0.2], "sum to 1, got 1.1"),
        ([0.5, math.nan, 0.5], "entry 1 is nan"),
        ([0.5, 0.5], "3 shares, one per client"),
    ],
)
def test_bad_shares_are_refused_by_entry(p: list[float], message: str):
    with pytest.raises(HoflError, match=message):
        rate.weighted_dimension(np.array(p), np.array([1, 2, 3]), 2)


def test_bad_coverage_and_cohort_are_refused():
    with pytest.raises(HoflError, match=r"epsilon must lie in \(0, 1\], got 0"):
        rate.c_0(Constants(), 3, 0.0)
    with pytest.raises(HoflError, match=r"cohort must lie in 1..3"):
        point(0.0, np.full(3, 1 / 3), np.ones(3), 1, 4)
