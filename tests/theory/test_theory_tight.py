"""Instances at which the bounds are equalities, along trajectories of the server's own path.

Clients send scalars and top differences; ``reconstruct`` replays, ``server_round`` averages them.
On isotropic quadratics (L = 1) at h = eta E = 1 the next gradient is minus the error of the
averaged update, so E||g_{t+1}||^2 = ||B_t||^2 + Var(M_t), whatever p, E, q and the boundaries are.
Summed over t this is the descent guarantee with equality, up to E||g_T||^2 / T: an error of a
constant in any of its three terms shows.
"""

import itertools

import numpy as np
import pytest
import torch

from hofl.algorithm import reconstruct, replay
from hofl.core.directions import DirectionKey
from hofl.core.optim import SGD
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.rules import LocalRule
from hofl.sampling.policies import DimensionAware, draw_cohort
from hofl.theory import lemmas
from hofl.theory.lemmas import (
    descent_bound,
    kappa,
    nu,
    rho_squared,
    round_variance,
    round_variance_bound,
)
from support.depround_law import covariance, law_of
from support.problems import (
    Fleet,
    Quadratics,
    forward_differences,
    local_update,
    settled,
    squared_gradient,
)
from support.steps import averaged

CENTRES = np.random.default_rng(3).normal(size=(4, 6))
PROBLEM = Quadratics(np.ones(6), CENTRES)


def fleet_of(steps: int) -> Fleet:
    return Fleet((0, 1, 2, 3), 2, q=8, mu=1e-3, eta=1 / steps, local_steps=steps, noise=0.5)


def exact_moments(fleet: Fleet, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a_i [N, d] and v_i [N] by following E e_k and E e_k^2 of e = w - x through the E steps.

    With G_l = E g_l^2 of the noisy gradient, a bottom coordinate's estimate has the second moment
    (sum_l G_l + 2 G_k) / q + (1 - 1/q) G_k, plus the radius's (mu^2 / 4q) E u_k^2 (u^T u)^2.
    """
    eta, q, c = fleet.eta, fleet.q, PROBLEM.curvature
    means, variances = [], []
    for client, d in enumerate(fleet.dims):
        mean = w - CENTRES[client]
        square, bottom = mean**2, np.arange(len(w)) < d
        start = mean
        for _ in range(fleet.local_steps):
            g = c**2 * square + fleet.noise / len(w)
            sixth = c[0] ** 2 * (d**2 + 2 * d + 4 * d + 8)
            probed = (g[:d].sum() + 2 * g) / q + (1 - 1 / q) * g + fleet.mu**2 / (4 * q) * sixth
            square = (1 - 2 * eta * c) * square + eta**2 * np.where(bottom, probed, g)
            mean = (1 - eta * c) * mean
        h = eta * fleet.local_steps
        means.append((start - mean) / h)
        variances.append((square - mean**2).sum() / h**2)
    return np.array(means), np.array(variances)


def upload_of(plan: RoundPlan, fleet: Fleet) -> Upload:
    """What the client of this plan sends: its scalars at each step, and its top's difference."""
    w, client = plan.w.double().numpy(), plan.client
    rng = np.random.default_rng([plan.seed, plan.round, client])
    cut = fleet.layout.cut(plan.boundary)
    here, scalars = plan.w.clone(), []
    for step in range(fleet.local_steps):
        at = here.double().numpy()
        xi = rng.normal(scale=np.sqrt(fleet.noise / len(w)), size=len(w))
        differences = forward_differences(
            lambda v, xi=xi: float(PROBLEM.losses(v)[client] + xi @ v),
            at,
            plan.key,
            step,
            fleet.layout,
            plan.boundary,
            fleet.q if cut else 0,
            fleet.mu,
        )
        scalars.append(differences)
        # Follow the bottom as the server will, and the top by its gradient.
        so_far = torch.tensor(scalars, dtype=torch.float32)
        top = torch.from_numpy((PROBLEM.gradients(at)[client] + xi).astype(np.float32))
        here = here - fleet.eta * top
        if cut:
            here[:cut] = replay(plan, so_far, fleet.layout)
    return Upload(
        run=plan.run,
        round=plan.round,
        client=client,
        boundary=plan.boundary,
        layout=plan.layout,
        plan=plan.digest(),
        scalars=torch.tensor(scalars, dtype=torch.float32).reshape(fleet.local_steps, -1),
        difference=here[cut:] - plan.w[cut:],
        metrics=ClientMetrics(0.0, 1),
    )


def server_path(fleet: Fleet, p: np.ndarray, start: np.ndarray, rounds: int, seed: int):
    """w_0, ..., w_T of Algorithm 1 by the server's own functions."""
    rule = LocalRule(
        optimizer=SGD(lr=fleet.eta), local_steps=fleet.local_steps, q=fleet.q, mu=fleet.mu
    )
    w = torch.from_numpy(start.astype(np.float32))
    yield w.double().numpy()
    for t in range(rounds):
        plans = [
            RoundPlan(
                run="r",
                round=t,
                client=i,
                boundary=fleet.boundaries[i],
                key=DirectionKey(seed, t, i),
                seed=seed,
                layout=fleet.layout.digest,
                rule=rule,
                w=w,
            )
            for i in draw_cohort(p, fleet.cohort, seed, t)
        ]
        rebuilt = ((x, reconstruct(x, upload_of(x, fleet), fleet.layout)) for x in plans)
        w = averaged(w, list(rebuilt), fleet.layout)
        yield w.double().numpy()


@pytest.mark.parametrize("steps", [1, 3])
def test_moments_of_local_updates_are_the_exact_ones(steps: int) -> None:
    """500 updates of the client with the largest bottom, within 4.5 standard errors."""
    fleet, w, client = fleet_of(steps), np.full(6, 1.5), 3
    ends = np.stack(
        [local_update(PROBLEM, fleet, w, client, DirectionKey(2, n, client)) for n in range(500)]
    )
    updates = w - ends  # h = 1
    means, variances = exact_moments(fleet, w)
    off = updates.mean(axis=0) - means[client]
    assert (np.abs(off) < 4.5 * updates.std(axis=0) / 500**0.5).all()
    squares = ((updates - means[client]) ** 2).sum(axis=1)
    assert abs(squares.mean() - variances[client]) < 4.5 * squares.std() / 500**0.5
    kappas, nus = kappa(fleet.dims, 8), nu(fleet.dims, 8, fleet.mu, 1.0, 0.5, fleet.dims / 12)
    gradients = PROBLEM.gradients(w)
    bottom = (gradients**2 * (np.arange(6) < fleet.dims[:, None])).sum(axis=1)
    energy = (gradients**2).sum(axis=1)
    radius = lemmas.drift_radius(fleet.eta, steps, kappas, nus, energy, bottom)
    rhos = rho_squared(fleet.dims, fleet.mu, 1.0)
    bound = lemmas.local_variance_bound(radius, rhos, kappas, nus, bottom, steps, 1.0)
    assert (variances <= bound).all()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("beta", [0.0, 0.6])
def test_descent_guarantee_is_an_equality_along_the_servers_trajectory(
    steps: int, beta: float
) -> None:
    """Up to E||g_T||^2 / T, over 40 runs of 8 rounds, within 4 standard errors of 3 % at most."""
    fleet, rounds, start = fleet_of(steps), 8, np.full(6, 2.0)
    p = DimensionAware(beta).marginals(fleet.dims / fleet.q, 2, 0)
    c = covariance(law_of(p, 2), 4)
    gap = float(PROBLEM.losses(start).mean()) - PROBLEM.infimum
    gaps, bounds, slack = [], [], []
    for seed in range(40):
        path = list(server_path(fleet, p, start, rounds, seed))
        biases, variances, loose = [], [], []
        for w in path[:-1]:
            a, v = exact_moments(fleet, w)
            biases.append(((p @ a - PROBLEM.gradients(w).mean(axis=0)) ** 2).sum())
            variances.append(round_variance(c, p, 2, v, a))
            loose.append(round_variance_bound(p, 2, v, a))
        exact = descent_bound(gap, 1.0, 1.0, np.array(biases), np.array(variances))
        squares = [squared_gradient(PROBLEM, w) for w in path]
        gaps.append(np.mean(squares[:-1]) + squares[-1] / rounds - exact)
        bounds.append(exact)
        slack.append(np.mean(loose) / np.mean(variances))
    error = np.std(gaps) / len(gaps) ** 0.5
    assert error < 0.03 * np.mean(bounds)
    assert abs(np.mean(gaps)) < 4 * error
    assert min(slack) > 1  # what the rounding lemma gives away


def test_rounding_lemma_worked_by_hand() -> None:
    """N = 2, K = 1, a = +1 and -1, v = 1 and 3: Var = 2 + 1 exactly, and 2 + 2 by the lemma."""
    p, means, variances = np.array([0.5, 0.5]), np.array([[1.0], [-1.0]]), np.array([1.0, 3.0])
    c = np.array([[0.25, -0.25], [-0.25, 0.25]])
    assert round_variance(c, p, 1, variances, means) == 3
    assert round_variance_bound(p, 1, variances, means) == 4
    assert round_variance_bound(p, 1, variances, means, np.array([1.0])) == 2 + 2 * 0.5 * 4


def test_best_beta_falls_step_by_step_as_clients_differ_in_real_runs() -> None:
    fleet = Fleet((0, 1, 1, 2, 3, 3), 2, q=1, mu=1e-3, eta=0.1, local_steps=1, noise=6.0)
    centres = np.random.default_rng(0).normal(size=(6, 6))
    best = []
    for scale in (0.0, 1.0, 3.0):
        problem = Quadratics(np.ones(6), scale * centres)
        losses = {beta: settled(problem, beta, fleet)[0] for beta in (0.0, 0.45, 0.9)}
        best.append(min(losses, key=losses.__getitem__))
    assert best[0] == 0.9
    assert best[-1] == 0.0
    assert all(a >= b for a, b in itertools.pairwise(best))
