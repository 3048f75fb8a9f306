"""Lemma "Hybrid Estimator Moments", by Monte Carlo with the project's own directions.

A Monte Carlo mean is compared within 4.5 of its standard errors: one false alarm in 150,000.
"""

import numpy as np
import pytest

from hofl.core.directions import DirectionKey, direction, normal_table
from hofl.core.errors import HoflError
from hofl.theory.lemmas import (
    kappa,
    nu,
    omega_squared,
    rho_squared,
    second_moment_bound,
    sixth_moment,
    variance_bound,
)
from support.problems import Fleet, Quadratics, estimate

DRAWS = 20_000


def gaussians(*shape: int, seed: int = 0) -> np.ndarray:
    """Directions as the project makes them, float64."""
    size = int(np.prod(shape))
    return direction(DirectionKey(seed, 0, 0), 0, 0, 0, size).reshape(shape).astype(float)


def agree(samples: np.ndarray, expected: float) -> bool:
    return abs(samples.mean() - expected) < 4.5 * samples.std() / len(samples) ** 0.5


@pytest.mark.parametrize(("d", "q"), [(1, 1), (5, 1), (12, 3), (40, 2)])
def test_q_directions_cost_d_plus_one_over_q(d: int, q: int):
    x = np.random.default_rng(d).normal(size=d)
    u = gaussians(DRAWS, q, d, seed=d)
    errors = np.einsum("nqd,nq->nd", u, u @ x) / q - x
    assert agree((errors**2).sum(axis=1), kappa(np.array([d]), q)[0] * x @ x)


def test_the_tables_fourth_moment_changes_kappa_by_less_than_a_thousandth_of_a_direction():
    """For independent coordinates E||uu'x - x||^2 = (d - 2 + E u^4) ||x||^2; normal: d + 1."""
    fourth = float((normal_table().astype(float) ** 4).mean())
    assert abs(fourth - 3) < 1e-3


@pytest.mark.parametrize("d", [1, 3, 10])
def test_sixth_moment_of_a_direction(d: int):
    u = gaussians(DRAWS, d, seed=d)
    assert agree((u**2).sum(axis=1) ** 3, sixth_moment(np.array([d]))[0])


@pytest.mark.parametrize("mu", [0.5, 0.01])
def test_forward_difference_bias_stays_below_rho_and_comes_close_on_the_worst_kink(mu: float):
    """At v = 0, v|v|/2 summed has gradient |v|, so L_s = 1, and a bias of mu sqrt(2/pi) each."""
    d = 6
    u = gaussians(DRAWS, d)
    samples = 0.5 * (mu * u * np.abs(mu * u)).sum(axis=1)[:, None] / mu * u
    bias = samples.mean(axis=0)
    error = 4.5 * samples.std(axis=0) / DRAWS**0.5
    assert (np.abs(bias - mu * (2 / np.pi) ** 0.5) < error).all()
    limit = rho_squared(np.array([d]), mu, 1.0)[0]
    assert 0.5 * limit < (bias**2).sum() < limit


@pytest.mark.parametrize(
    ("mu", "noise", "boundary"), [(0.3, 0.5, 2), (1e-3, 0.0, 3), (2.0, 1.0, 1)]
)
def test_estimator_on_a_quadratic_is_unbiased_and_within_the_variance_bound(
    mu: float, noise: float, boundary: int
):
    """The Hessian is diagonal and known; the estimator's exact variance is written out below."""
    fleet = Fleet((boundary,), 1, q=3, mu=mu, eta=1.0, local_steps=1, noise=noise)
    curvature = np.array([1.0, 0.2, 0.9, 0.5, 0.7, 0.1])
    problem = Quadratics(curvature, np.zeros((1, 6)))
    w = np.array([1.0, -2.0, 0.5, 1.5, -1.0, 3.0])
    g, rng = problem.gradients(w)[0], np.random.default_rng(boundary)
    draws, d = 4000, int(fleet.dims[0])
    xi = rng.normal(scale=(noise / 6) ** 0.5, size=(draws, 6))
    samples = np.stack(
        [
            estimate(
                lambda v, x=x: float(problem.losses(v)[0] + x @ v),
                g + x,
                w,
                DirectionKey(3, n, 0),
                0,
                fleet.layout,
                boundary,
                fleet.q,
                mu,
            )
            for n, x in enumerate(xi)
        ]
    ).astype(float)
    assert (np.abs(samples.mean(axis=0) - g) < 4.5 * samples.std(axis=0) / draws**0.5 + 1e-6).all()
    energy, bottom_noise = (g[:d] ** 2).sum(), noise * d / 6
    u = gaussians(DRAWS, d, seed=9)
    remainder = (mu / 2 * u**2 @ curvature[:d]) ** 2 * (u**2).sum(axis=1)
    kappas = kappa(fleet.dims, fleet.q)
    exact = kappas[0] * (energy + bottom_noise) + noise + remainder.mean() / fleet.q
    spread = ((samples - g) ** 2).sum(axis=1)
    extra = 4.5 * remainder.std() / fleet.q / DRAWS**0.5
    assert abs(spread.mean() - exact) < 4.5 * spread.std() / draws**0.5 + extra
    nus = nu(fleet.dims, fleet.q, mu, problem.smoothness, noise, bottom_noise)
    limit = variance_bound(kappas, nus, np.array([energy]))[0]
    assert exact < limit
    whole = second_moment_bound(kappas, nus, np.array([g @ g]), np.array([energy]))[0]
    assert (samples**2).sum(axis=1).mean() < whole


def test_constants_of_the_lemma_worked_by_hand():
    """One client: d = 4, q = 2, mu = 1/2, L_s = 2, sigma^2 = 3 and 1, squared gradients 5 and 2."""
    dims = np.array([4])
    assert kappa(dims, 2)[0] == 5 / 2
    assert rho_squared(dims, 0.5, 2.0)[0] == 4  # mu L_s = 1
    assert omega_squared(dims, 0.5, 2.0)[0] == 4 * 6 * 8 / 4
    nus = nu(dims, 2, 0.5, 2.0, noise=3.0, bottom_noise=1.0)
    assert nus[0] == 2 * 3 + 5 * 1 + 2 * 48 == 107
    assert nu(dims, 2, 0.5, 2.0, noise=3.0)[0] == 2 * 3 + 5 * 3 + 2 * 48
    two, five = np.array([2.0]), np.array([5.0])
    assert variance_bound(kappa(dims, 2), nus, two)[0] == 5 * 2 + 107
    assert second_moment_bound(kappa(dims, 2), nus, five, two)[0] == 2 * 5 + 5 * 2 + 107


def test_a_first_order_client_has_no_penalty_and_plain_noise():
    none = np.array([0])
    assert kappa(none, 2)[0] == rho_squared(none, 1.0, 1.0)[0] == omega_squared(none, 1.0, 1.0)[0]
    assert kappa(none, 2)[0] == 0
    assert nu(none, 2, 1.0, 1.0, noise=0.7)[0] == 0.7


@pytest.mark.parametrize(
    ("dims", "q", "message"),
    [
        ([3, -1], 2, r"entry 1 is -1"),
        ([3, np.nan], 2, r"entry 1 is nan"),
        ([2.5, 1], 2, r"entry 0 is 2.5"),
        ([], 2, r"one entry per client"),
        ([3], 0, r"q must be at least 1, got 0"),
    ],
)
def test_bad_dimensions_name_the_entry(dims: list[float], q: int, message: str):
    with pytest.raises(HoflError, match=message):
        kappa(np.array(dims), q)
