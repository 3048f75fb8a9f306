"""Federated problems with known L, sigma^2 and zeta^2, and HO-FL on them with the project's parts.

A minibatch xi turns f_i(w) into l(w; xi) = f_i(w) + <xi, w>: the noise of the gradient is xi. The
surrogate is l itself as a function of the bottom: its anchor gradient is exact and L_s = L.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hofl.core.directions import DirectionKey, Gaussian, direction
from hofl.core.layout import Layout
from hofl.core.optim import SGD
from hofl.sampling.policies import DimensionAware, draw_cohort


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = 1/2 sum_k c_k (w_k - x_ik)^2: L = max c, a_H = 0, zeta^2 exact and constant."""

    curvature: np.ndarray  # c [d]
    centres: np.ndarray  # x [N, d]

    def losses(self, w: np.ndarray) -> np.ndarray:
        return 0.5 * ((w - self.centres) ** 2 @ self.curvature)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        return (w - self.centres) * self.curvature

    def smoothed(self, w: np.ndarray, mu: float) -> np.ndarray:
        """E grad f_i(w + mu u), what a forward difference estimates: no bias on a quadratic."""
        return self.gradients(w)

    @property
    def smoothness(self) -> float:
        return float(self.curvature.max())

    @property
    def heterogeneity(self) -> float:
        spread = (self.centres - self.centres.mean(axis=0)) * self.curvature
        return float((spread**2).sum(axis=1).mean())

    @property
    def infimum(self) -> float:
        return float(self.losses(self.centres.mean(axis=0)).mean())


@dataclass(frozen=True)
class Waves:
    """f_i(w) = A sum_k (1 - cos(w_k - x_ik)): non-convex, L = A, a_H = 0."""

    amplitude: float
    centres: np.ndarray  # x [N, d]

    def losses(self, w: np.ndarray) -> np.ndarray:
        return self.amplitude * (1 - np.cos(w - self.centres)).sum(axis=1)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        return self.amplitude * np.sin(w - self.centres)

    def smoothed(self, w: np.ndarray, mu: float) -> np.ndarray:
        """E sin(y + mu u) = exp(-mu^2 / 2) sin(y): a bias towards zero."""
        return self.gradients(w) * np.exp(-(mu**2) / 2)

    @property
    def smoothness(self) -> float:
        return self.amplitude

    @property
    def heterogeneity(self) -> float:
        """The largest H(w): A^2 times the top variance of the points (cos x_ik, sin x_ik)."""
        total = 0.0
        for x in self.centres.T:
            covariance = np.cov(np.stack([np.cos(x), np.sin(x)]), bias=True)
            total += float(np.linalg.eigvalsh(covariance)[-1])
        return self.amplitude**2 * total

    @property
    def infimum(self) -> float:
        """Each coordinate is a shifted cosine of amplitude |mean exp(i x)|."""
        resultant = np.abs(np.exp(1j * self.centres).mean(axis=0))
        return float(self.amplitude * (1 - resultant).sum())


Problem = Quadratics | Waves


@dataclass(frozen=True)
class Fleet:
    """Who trains, and how. One parameter of ``width`` scalars per block; boundaries per client."""

    boundaries: tuple[int, ...]
    cohort: int
    q: int
    mu: float
    eta: float
    local_steps: int
    noise: float  # sigma^2 of the whole gradient
    width: int = 2
    blocks: int = 3

    @cached_property
    def layout(self) -> Layout:
        names = tuple(f"w{k}" for k in range(self.blocks))
        shapes = ((self.width,),) * self.blocks
        return Layout(names, shapes, tuple(range(self.blocks)), self.blocks)

    @property
    def dims(self) -> np.ndarray:
        return np.array([self.layout.cut(b) for b in self.boundaries])


def estimate(
    loss: Callable[[np.ndarray], float],
    gradient: np.ndarray,
    w: np.ndarray,
    key: DirectionKey,
    step: int,
    layout: Layout,
    boundary: int,
    q: int,
    mu: float,
) -> np.ndarray:
    """The hybrid-order estimate at w, float32 [d]: forward differences below, gradient above."""
    cut = layout.cut(boundary)
    out = gradient.astype(np.float32)
    if cut:
        scalars = forward_differences(loss, w, key, step, layout, boundary, q, mu)
        Gaussian(key, layout).combine(scalars, step, boundary, out[:cut])
    return out


def forward_differences(
    loss: Callable[[np.ndarray], float],
    w: np.ndarray,
    key: DirectionKey,
    step: int,
    layout: Layout,
    boundary: int,
    q: int,
    mu: float,
) -> list[float]:
    """The scalars s_j = (l(w + mu u_j) - l(w)) / mu, [q]."""
    base = loss(w)
    scalars = []
    for j in range(q):
        moved = w.copy()
        for c in layout.bottom(boundary):
            moved[c.start : c.stop] += mu * direction(key, step, j, c.index, c.size)
        scalars.append((loss(moved) - base) / mu)
    return scalars


def local_update(
    problem: Problem, fleet: Fleet, w: np.ndarray, client: int, key: DirectionKey
) -> np.ndarray:
    """The client's parameters after E local steps of SGD, float64 [d]."""
    d = len(w)
    rng = np.random.default_rng([key.seed, key.round, client])
    optimizer = SGD(lr=fleet.eta)
    here = torch.from_numpy(w.astype(np.float32))
    state = optimizer.init(here)
    for step in range(fleet.local_steps):
        at = here.numpy().astype(np.float64)
        xi = rng.normal(scale=np.sqrt(fleet.noise / d), size=d)
        g = estimate(
            lambda v, xi=xi: float(problem.losses(v)[client] + xi @ v),
            problem.gradients(at)[client] + xi,
            at,
            key,
            step,
            fleet.layout,
            fleet.boundaries[client],
            fleet.q,
            fleet.mu,
        )
        optimizer.step(here, torch.from_numpy(g), state)
    return here.numpy().astype(np.float64)


def trajectory(
    problem: Problem, fleet: Fleet, p: np.ndarray, start: np.ndarray, rounds: int, seed: int
) -> Iterator[np.ndarray]:
    """w_0, ..., w_{T-1} of Algorithm 1 with DepRound cohorts and the direct mean of 1/K."""
    w = start.copy()
    for t in range(rounds):
        yield w
        cohort = draw_cohort(p, fleet.cohort, seed, t)
        ends = [local_update(problem, fleet, w, i, DirectionKey(seed, t, i)) for i in cohort]
        w = np.mean(ends, axis=0)


def squared_gradient(problem: Problem, w: np.ndarray) -> float:
    """||grad f(w)||^2 of the global objective."""
    return float((problem.gradients(w).mean(axis=0) ** 2).sum())


def settled(problem: Quadratics, beta: float, fleet: Fleet) -> tuple[float, float]:
    """Mean and standard error over runs of ||grad f||^2, averaged over the second half of a run."""
    p = DimensionAware(beta).marginals(fleet.dims / fleet.q, fleet.cohort, 0)
    rounds, start = 120, problem.centres.mean(axis=0)
    runs = [
        np.mean(
            [
                squared_gradient(problem, w)
                for t, w in enumerate(trajectory(problem, fleet, p, start, rounds, seed))
                if t >= rounds // 2
            ]
        )
        for seed in range(6)
    ]
    return float(np.mean(runs)), float(np.std(runs) / len(runs) ** 0.5)
