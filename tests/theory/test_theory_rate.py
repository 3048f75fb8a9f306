"""The formal theorem: constants by hand and against the proof's own chain, special cases."""

import math
from dataclasses import fields

import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.sampling.policies import DimensionAware
from hofl.theory import lemmas, rate
from hofl.theory.assumptions import LARGEST, Constants
from hofl.theory.lemmas import kappa, nu, rho_squared, round_variance_bound
from hofl.theory.tradeoff import point, special_cases

TIERS = np.repeat([8.0, 16.0, 24.0], 10)


def test_constants_of_a_small_fleet_worked_by_hand():
    """N = 2, L = L_s = sigma^2 = 1, eps = 1/2, a_H = 0, zeta^2 = 2, Delta = 3."""
    constants = Constants(heterogeneity=2.0, gap=3.0)
    zero = 1 + (30 + 24) * (64 + 8 + 2) + 108 + 12
    assert rate.c_0(constants, 2, 0.5) == zero == 4117
    assert rate.c_0_coverage_free(constants, 2) == 1 + 26 * 74 + 104 + 12
    assert rate.c_star(constants, 2, 0.5, zero) == 144 * 4117**2
    assert rate.c_rate(constants, zero) == 12 + 20 * 4117
    p, dims = np.array([0.75, 0.25]), np.array([4, 12])
    assert rate.weighted_dimension(p, dims, 2) == 1 + (3 + 3) / 2
    assert rate.m_p(p, dims) == 0.75 * 4 * 6 * 8 + 0.25 * 12 * 14 * 16
    assert rate.chi_squared(p) == 2 * (1 / 16 + 1 / 16)
    assert rate.step_size(5, 100, 4.0) == 1 / (5 * 20)
    assert rate.proof_coefficient(0.5, 3, 2, 4.0) == 0.5 * (3 + 4) / 2 + (0.5 * 2) ** 2 * 4
    assert rate.radius(64, 4.0, 816) == pytest.approx(0.5 / math.sqrt(816), rel=1e-15)
    expected = (12 + 20 * 4117) * math.sqrt(4 / 100) + 6 * 2 * 0.25
    assert rate.bound(constants, p, dims, 2, 100, 0.5) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("smoothness", "clients", "epsilon", "zero", "expected"),
    [
        (1e-9, 1, 1.0, 0.0, 1),
        (1.0, 1, 1.0, 0.0, 8 * 3),  # drift: 8 L^2 (1 + 2N/eps)
        (100.0, 4, 0.5, 0.0, 1600**2),  # variance: (2NL/eps)^2
        (1.0, 4, 0.5, 7.0, 144 * 49 * 1.21),  # absorption, a_H = 0.1
    ],
)
def test_each_branch_of_c_star_can_decide(
    smoothness: float, clients: int, epsilon: float, zero: float, expected: float
):
    constants = Constants(smoothness=smoothness, affine=0.1)
    assert rate.c_star(constants, clients, epsilon, zero) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(60))
def test_expanded_error_holds_at_the_largest_stable_step_for_both_centres(seed: int):
    """Eq. (aggregate-error-expanded), and its form without epsilon from which 26 and 52 come.

    C_0 only collects these coefficients: 26 = 3 + 3 + 12 + 8 and 52 = 4 + 48 without epsilon.
    """
    rng = np.random.default_rng(seed)
    clients, q, steps = int(rng.integers(2, 7)), int(rng.integers(1, 4)), 1 + seed % 4
    cohort = int(rng.integers(1, clients + 1))
    dims = rng.choice([0, 1, 2, 8], size=clients)
    beta = rng.uniform(0, 0.95)
    p, epsilon = DimensionAware(beta).marginals(dims, cohort, seed), 1 - beta
    kappas, mu = kappa(dims, q), 10 ** rng.uniform(-3, 0)
    limits = [1 / steps, cohort / max(kappas.max(), 1e-9)]
    limits.append(math.sqrt(1 / 8 / (1 + kappas.max())) / max(steps - 1, 1e-9))
    eta = min(limits)  # L = 1
    g = rng.normal(size=(clients, 3)) * rng.choice([0.1, 1, 10], size=(clients, 1))
    mean, squares = g.mean(axis=0), (g**2).sum(axis=1)
    spread = float(((g - mean) ** 2).sum(axis=1).mean())
    bottom = squares * (dims > 0)
    rhos, nus = rho_squared(dims, mu, 1.0), nu(dims, q, mu, 1.0, noise=rng.exponential())
    radii = lemmas.drift_radius(eta, steps, kappas, nus, squares, bottom)
    local = lemmas.local_variance_bound(radii, rhos, kappas, nus, bottom, steps, 1.0)
    away = rng.normal(size=g.shape)
    away *= (np.sqrt(radii) + np.sqrt(rhos))[:, None] / np.linalg.norm(away, axis=1, keepdims=True)
    bias = ((p @ (g + away) - mean) ** 2).sum()
    rest = 3 * rate.chi_squared(p) * spread
    rest += eta / cohort * (12 * p @ (squares + kappas * bottom) + 3 * p @ nus)
    forms = [(None, 30 + 12 / epsilon, 18 + 12 / epsilon, 6), (mean, 26, 14, 4)]
    for centre, drift, remainder, disagreement in forms:
        error = bias + eta * steps * round_variance_bound(p, cohort, local, g + away, centre)
        limit = rest + drift * p @ radii + remainder * p @ rhos
        limit += disagreement * clients * eta * steps / cohort * spread
        assert error <= limit * (1 + 1e-9)


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
    assert (lemmas.drift_condition(eta, steps, kappas, smooth) <= 0.5).all()
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
    radii = lemmas.drift_radius(eta, steps, kappas, nus, squares, squares * (dims > 0))
    local = lemmas.local_variance_bound(
        radii, rhos, kappas, nus, squares * (dims > 0), steps, smooth
    )
    # a_i = g_i + r_i with r_i as long as drift and bias can be together, in a random direction
    away = rng.normal(size=gradients.shape)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    lengths = smooth * np.sqrt(radii) + np.sqrt(rhos)
    allowed = lemmas.mean_update_error(radii, rhos, smooth)
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


def test_the_largest_constants_overflow_nowhere():
    names = [field.name for field in fields(Constants)]
    huge = Constants(**dict.fromkeys(names, LARGEST))
    zero = rate.c_0(huge, 10**6, 1e-6)
    star = rate.c_star(huge, 10**6, 1e-6, zero)
    assert math.isfinite(rate.horizon(star, 1e12))
    assert math.isfinite(rate.bound(huge, np.array([1.0]), np.array([10**12]), 1, 1, 1e-6))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"smoothness": 0.0}, "smoothness must be positive"),
        ({"noise": -1.0}, "noise must be finite and >= 0, got -1"),
        ({"heterogeneity": math.nan}, "heterogeneity must be finite and >= 0, got nan"),
        ({"gap": math.inf}, "gap must be finite"),
        ({"smoothness": 1e200}, r"smoothness must be at most 1e\+30, got 1e\+200"),
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
    with pytest.raises(HoflError, match="cohort of 4 cannot be drawn from 3 clients"):
        point(0.0, np.full(3, 1 / 3), np.ones(3), 1, 4)
