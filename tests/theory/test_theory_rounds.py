"""Rounds of HO-FL: the averaged update's variance, and the bounds along real trajectories.

Trajectories are made of the project's own directions, SGD and DepRound, on problems whose L,
sigma^2 and zeta^2 are known exactly (tests/support/problems.py).
"""

import math

import numpy as np
import pytest

from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.sampling.depround import depround
from hofl.sampling.policies import DimensionAware
from hofl.theory import lemmas, rate
from hofl.theory.assumptions import Constants
from hofl.theory.lemmas import (
    descent_bound,
    kappa,
    nu,
    rho_squared,
    round_variance,
    round_variance_bound,
    variance_bound,
)
from support.depround_law import covariance, law_of
from support.problems import (
    Fleet,
    Problem,
    Quadratics,
    Waves,
    local_update,
    settled,
    squared_gradient,
    trajectory,
)

UNEVEN = np.array([0.5, 0.25, 0.05, 0.2])  # p of four clients, K = 2: the first is always in
CENTRES = np.random.default_rng(0).normal(size=(6, 6))
BOUNDARIES = (0, 1, 1, 2, 3, 3)


@pytest.mark.parametrize("p", [UNEVEN, np.array([0.3, 0.1, 0.2, 0.15, 0.25]), np.full(5, 0.2)])
def test_variance_of_the_averaged_update_by_enumeration_stays_below_its_bound(p: np.ndarray):
    law = law_of(p, 2)
    c = covariance(law, len(p))
    assert sum(law.values()) == pytest.approx(1)
    assert np.allclose(np.diag(c), 2 * p * (1 - 2 * p))
    rng = np.random.default_rng(0)
    for _ in range(50):
        means = rng.normal(size=(len(p), 3)) + rng.normal(size=3) * 10
        variances = rng.exponential(size=len(p))
        brute = sum(float(w) * means[list(s)].mean(axis=0) for s, w in law.items())
        spread = sum(
            float(w)
            * (((means[list(s)].mean(axis=0) - brute) ** 2).sum() + variances[list(s)].sum() / 4)
            for s, w in law.items()
        )
        assert round_variance(c, p, 2, variances, means) == pytest.approx(spread)
        centres = [None, means[0], brute, rng.normal(size=3)]
        bounds = [round_variance_bound(p, 2, variances, means, centre) for centre in centres]
        assert spread <= min(bounds) * (1 + 1e-12)


def test_variance_of_real_draws_is_the_enumerated_one():
    """20,000 cohorts of the project's DepRound with noisy updates, within 4.5 standard errors."""
    p, rng, draws = UNEVEN, np.random.default_rng(4), 20_000
    means, variances = rng.normal(size=(4, 3)), np.array([0.1, 2.0, 0.5, 1.0])
    c = covariance(law_of(p, 2), 4)
    updates = np.empty((draws, 3))
    for row in updates:
        chosen = depround(2 * p, rng)
        noise = rng.normal(size=(2, 3)) * np.sqrt(variances[chosen] / 3)[:, None]
        row[:] = (means[chosen] + noise).mean(axis=0)
    squares = ((updates - p @ means) ** 2).sum(axis=1)
    exact = round_variance(c, p, 2, variances, means)
    assert abs(squares.mean() - exact) < 4.5 * squares.std() / draws**0.5
    assert exact < round_variance_bound(p, 2, variances, means)


def test_local_drift_mean_and_variance_stay_within_the_trajectory_lemma():
    """E = 4 steps of one client from one point, 600 times, at the largest step the lemma allows."""
    problem = Quadratics(np.array([1.0, 0.8, 0.6, 1.0, 0.3, 0.5]), np.zeros((1, 6)))
    w, steps, q, mu, noise = np.linspace(1, 2, 6), 4, 2, 0.05, 0.6
    dims = np.array([4])
    kappas = kappa(dims, q)
    eta = math.sqrt(1 / 8 / (1 + kappas[0])) / (steps - 1)
    fleet = Fleet((2,), 1, q, mu, eta, steps, noise)
    assert lemmas.drift_condition(eta, steps, kappas, 1.0)[0] == pytest.approx(0.5)
    ends = np.stack([local_update(problem, fleet, w, 0, DirectionKey(1, n, 0)) for n in range(600)])
    before = Fleet((2,), 1, q, mu, eta, steps - 1, noise)
    last = np.stack(
        [local_update(problem, before, w, 0, DirectionKey(1, n, 0)) for n in range(600)]
    )
    g = problem.gradients(w)[0]
    energy, bottom = np.array([g @ g]), np.array([g[:4] @ g[:4]])
    nus = nu(dims, q, mu, 1.0, noise, noise * 4 / 6)
    rhos = rho_squared(dims, mu, 1.0)
    radius = lemmas.drift_radius(eta, steps, kappas, nus, energy, bottom)
    assert 0.02 * radius[0] < ((last - w) ** 2).sum(axis=1).mean() < radius[0]
    updates = (w - ends) / (eta * steps)
    error = ((updates.mean(axis=0) - g) ** 2).sum()
    assert error < lemmas.mean_update_error(radius, rhos, 1.0)[0]
    spread = ((updates - updates.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert spread < lemmas.local_variance_bound(radius, rhos, kappas, nus, bottom, steps, 1.0)[0]


@pytest.mark.parametrize("beta", [0.0, 0.6])
@pytest.mark.parametrize(
    ("problem", "mu"),
    [(Quadratics(np.linspace(1, 0.2, 6), CENTRES), 0.01), (Waves(1.0, CENTRES), 0.3)],
    ids=["quadratic", "waves"],
)
def test_descent_guarantee_holds_and_is_tight_within_a_factor_of_ten(
    problem: Problem, mu: float, beta: float
):
    """E = 1: a_i is known exactly, with the estimator's bias on waves; v_i by the moments lemma."""
    fleet = Fleet(BOUNDARIES, 2, q=2, mu=mu, eta=0.1, local_steps=1, noise=0.2)
    p = DimensionAware(beta).marginals(fleet.dims / fleet.q, fleet.cohort, 0)
    start, rounds = np.full(6, 2.0), 150
    kappas = kappa(fleet.dims, fleet.q)
    bottom = np.arange(6) < fleet.dims[:, None]
    nus = nu(fleet.dims, 2, mu, 1.0, fleet.noise, fleet.noise * fleet.dims / 6)
    squares, biases, variances = (np.zeros((4, rounds)) for _ in range(3))
    for seed in range(4):
        for t, w in enumerate(trajectory(problem, fleet, p, start, rounds, seed)):
            g = problem.gradients(w)
            a = np.where(bottom, problem.smoothed(w, mu), g)
            squares[seed, t] = squared_gradient(problem, w)
            biases[seed, t] = ((p @ a - g.mean(axis=0)) ** 2).sum()
            v = variance_bound(kappas, nus, (g**2 * bottom).sum(axis=1))
            variances[seed, t] = round_variance_bound(p, fleet.cohort, v, a)
    gap = float(problem.losses(start).mean()) - problem.infimum
    limit = descent_bound(gap, 1.0, fleet.eta, biases.mean(axis=0), variances.mean(axis=0))
    assert 0.1 * limit < squares.mean() < limit


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(
    "problem",
    [Quadratics(0.004 * np.linspace(1, 0.2, 6), 30 * CENTRES[:4]), Waves(0.004, CENTRES[:4])],
    ids=["quadratic", "waves"],
)
def test_formal_bound_holds_along_a_real_trajectory_of_the_theorems_own_length(
    problem: Problem, beta: float
):
    """T = C_star D, eta and mu as the theorem sets them; L is small so that T is affordable."""
    shape = Fleet((0, 1, 2, 3), 2, q=2, mu=1.0, eta=1.0, local_steps=2, noise=0.05)
    p = DimensionAware(beta).marginals(shape.dims / shape.q, 2, 0)
    start = np.full(6, 1.0 if isinstance(problem, Waves) else 60.0)
    constants = Constants(
        smoothness=problem.smoothness,
        surrogate_smoothness=problem.smoothness,
        noise=shape.noise,
        heterogeneity=problem.heterogeneity,
        gap=float(problem.losses(start).mean()) - problem.infimum,
    )
    epsilon, dimension = 1 - beta, rate.weighted_dimension(p, shape.dims, 2)
    star = rate.c_star(constants, 4, epsilon, rate.c_0(constants, 4, epsilon))
    rounds = math.ceil(rate.horizon(star, dimension))
    fleet = Fleet(
        shape.boundaries,
        2,
        q=2,
        mu=rate.radius(rounds, dimension, rate.m_p(p, shape.dims)),
        eta=rate.step_size(2, rounds, dimension),
        local_steps=2,
        noise=shape.noise,
    )
    path = trajectory(problem, fleet, p, start, rounds, seed=1)
    squares = [squared_gradient(problem, w) for w in path]
    assert np.mean(squares) < rate.bound(constants, p, shape.dims, 2, rounds, epsilon)


def test_skewed_sampling_helps_like_clients_and_hurts_unlike_ones_in_real_runs():
    """The trade-off in training itself: beta = 0.9 beats 0 at zeta = 0 and loses at large zeta."""
    fleet = Fleet(BOUNDARIES, 2, q=1, mu=1e-3, eta=0.1, local_steps=1, noise=6.0)
    curvature = np.ones(6)
    like, unlike = (Quadratics(curvature, scale * CENTRES) for scale in (0.0, 3.0))
    (calm, e1), (wild, e2) = settled(like, 0.9, fleet), settled(like, 0.0, fleet)
    assert calm + 3 * math.hypot(e1, e2) < wild
    (skewed, e1), (uniform, e2) = settled(unlike, 0.9, fleet), settled(unlike, 0.0, fleet)
    assert uniform + 3 * math.hypot(e1, e2) < skewed


def test_trajectory_lemma_and_descent_guarantee_worked_by_hand():
    """E = 3, eta = 1/2, kappa = 2, nu = 5, ||g||^2 = 3, ||Pi g||^2 = 1, rho^2 = 4, L = 2."""
    one, two, five = np.array([1.0]), np.array([2.0]), np.array([5.0])
    radius = lemmas.drift_radius(0.5, 3, two, five, np.array([3.0]), one)
    assert radius[0] == 2 * 1 * (4 * (3 + 2 * 1) + 5)  # tau = 1
    assert lemmas.mean_update_error(radius, np.array([4.0]), 2.0)[0] == 2 * 4 * 50 + 2 * 4
    variance = lemmas.local_variance_bound(radius, np.array([4.0]), two, five, one, 3, 2.0)
    assert variance[0] == 3 * 200 + 3 * 4 + (4 * 2 * 1 + 4 * 2 * 200 + 5)
    bound = descent_bound(3.0, 2.0, 0.25, np.array([1.0, 3.0]), np.array([4.0, 8.0]))
    assert bound == 2 * 3 / 0.5 + 2 + 0.5 * 6


def test_too_long_a_step_is_refused():
    with pytest.raises(HoflError, match=r"h = eta E must lie in \(0, 1/L\]"):
        descent_bound(1.0, 2.0, 0.6, np.zeros(3), np.zeros(3))
    with pytest.raises(HoflError, match="eta must be positive, got 0"):
        lemmas.tau(0.0, 2)
