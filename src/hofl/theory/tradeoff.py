"""The bound against beta: what a skewed policy gains in dimension and loses in representation.

A curve is computed from points (beta, p). Which p belongs to a beta is up to the sampling policy,
so the points are arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_cohort
from hofl.theory.assumptions import Constants
from hofl.theory.rate import (
    MAX_SKEW,
    c_0,
    c_rate,
    c_star,
    chi_squared,
    horizon,
    m_p,
    optimization_term,
    radius,
    representation_term,
    weighted_dimension,
)


@dataclass(frozen=True)
class Point:
    """One policy: beta, and what the bound needs of its shares p."""

    beta: float
    dimension: float  # D
    skew: float  # chi^2
    remainder: float  # M_p
    least: float  # N min p_i, the largest epsilon with p_i >= epsilon / N
    most: float  # K max p_i, at most 1


@dataclass(frozen=True)
class BoundCurve:
    """Both terms of a bound at each beta."""

    betas: np.ndarray
    optimization: np.ndarray
    representation: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """The bound."""
        return self.optimization + self.representation

    def best(self) -> float:
        """Return the beta of the least bound; the smallest among equals."""
        return float(self.betas[int(np.argmin(self.total))])


def point(beta: float, p: np.ndarray, dims: np.ndarray, q: int, cohort: int) -> Point:
    """Return what the theorem needs of one policy."""
    check_cohort(cohort, len(dims))
    dimension = weighted_dimension(p, dims, q)
    least, most = len(p) * float(p.min()), cohort * float(p.max())
    return Point(beta, dimension, chi_squared(p), m_p(p, dims), least, most)


def formal_curve(
    points: Sequence[Point], constants: Constants, rounds: float, zero: float | np.ndarray
) -> BoundCurve:
    """C_rate sqrt(D/T) + 6 zeta^2 chi^2; ``zero`` is C_0, one for all points or one for each."""
    zeros = np.broadcast_to(np.asarray(zero, dtype=np.float64), (len(points),))
    first = [
        optimization_term(c_rate(constants, float(z)), x.dimension, rounds)
        for x, z in zip(points, zeros, strict=True)
    ]
    second = [representation_term(constants.heterogeneity, x.skew) for x in points]
    return BoundCurve(_betas(points), np.array(first), np.array(second))


def informal_curve(points: Sequence[Point], heterogeneity: float, rounds: float) -> BoundCurve:
    """Eq. (main-explicit-rate) with both O(.) read as 1: sqrt(D/T) + zeta^2 chi^2."""
    first = [optimization_term(1.0, x.dimension, rounds) for x in points]
    return BoundCurve(
        _betas(points), np.array(first), heterogeneity * np.array([x.skew for x in points])
    )


def own_floor_zeros(points: Sequence[Point], constants: Constants, num_clients: int) -> np.ndarray:
    """C_0 at each policy's own floor, epsilon = N min p_i = 1 - beta, instead of a common one."""
    return np.array([c_0(constants, num_clients, min(x.least, 1.0)) for x in points])


@dataclass(frozen=True)
class Condition:
    """One requirement of the theorem at one policy."""

    name: str
    value: float
    limit: float
    holds: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g}, limit {self.limit:.4g}"


def conditions(
    x: Point,
    constants: Constants,
    num_clients: int,
    epsilon: float,
    rounds: float,
    mu: float | None = None,
) -> list[Condition]:
    """Check every requirement of Theorem "thm:convergence-formal" on p, T and (if given) mu."""
    slack = 1e-9  # p carries rounding errors, and beta = 1 - epsilon must be allowed
    star = c_star(constants, num_clients, epsilon, c_0(constants, num_clients, epsilon))
    needed = horizon(star, x.dimension)
    skew = constants.affine * x.skew
    checked = [
        Condition("coverage N min p >= epsilon", x.least, epsilon, x.least >= epsilon - slack),
        Condition("capacity K max p <= 1", x.most, 1.0, x.most <= 1 + slack),
        Condition("skew a_H chi^2 <= 1/12", skew, MAX_SKEW, skew <= MAX_SKEW),
        Condition("horizon T >= C_star D", rounds, needed, rounds >= needed),
    ]
    if mu is not None:
        largest = radius(rounds, x.dimension, x.remainder)
        checked.append(
            Condition("radius mu <= (D/T)^(1/4) / sqrt(M_p)", mu, largest, mu <= largest)
        )
    return checked


def special_cases(dims: np.ndarray, total: int) -> dict[str, np.ndarray]:
    """Return the fleets at which the paper recovers known rates, all under uniform sampling.

    Args:
        dims: d_ZO of the fleet [N]; its mean is the equal boundary's dimension.
        total: d, all trainable coordinates.
    """
    ones = np.ones(len(dims))
    return {
        "HO-SFL: equal boundaries": np.round(ones * np.mean(dims)),
        "FedAvg: d_ZO = 0": 0 * ones,
        "pure ZO: d_ZO = d": total * ones,
    }


def _betas(points: Sequence[Point]) -> np.ndarray:
    if not points:
        raise HoflError("a curve needs at least one beta.")
    return np.array([x.beta for x in points])
