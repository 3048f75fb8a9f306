"""Theorem "Non-Convex Convergence of HO-FL with Fixed Sampling" (thm:convergence-formal).

    (1/T) sum_t E||∇f(w_t)||^2  <=  C_rate sqrt(D / T)  +  6 ζ^2 χ^2(p)

D is the sampling-weighted dimension, χ^2 (chi squared) the departure of p from uniform, ζ^2 (zeta
squared) the clients' residual disagreement. ε (epsilon) is the coverage floor p_i >= ε/N.
"""

import math

import numpy as np

from hofl.theory.assumptions import (
    Constants,
    at_least,
    checked_coverage,
    checked_dims,
    checked_shares,
)
from hofl.theory.lemmas import sixth_moment

MAX_SKEW = 1 / 12
"""a_H χ^2(p) may not exceed this, Eq. (rate-regime)."""


def weighted_dimension(p: np.ndarray, dims: np.ndarray, q: int) -> float:
    """D = 1 + (1/q) sum_i p_i d_i: what the rate pays for zeroth-order coordinates."""
    at_least(1, q=q)
    d = checked_dims(dims)
    return 1.0 + float(checked_shares(p, len(d)) @ d) / q


def m_p(p: np.ndarray, dims: np.ndarray) -> float:
    """M_p = sum_i p_i d_i (d_i + 2)(d_i + 4), Eq. (weighted-dimensions): the remainder's size."""
    return float(checked_shares(p, len(dims)) @ sixth_moment(dims))


def chi_squared(p: np.ndarray) -> float:
    """χ^2(p) = N sum_i (p_i - 1/N)^2, Eq. (weighted-dimensions): 0 for uniform sampling."""
    shares = checked_shares(p, len(p))
    return float(len(shares) * ((shares - 1 / len(shares)) ** 2).sum())


def c_0(constants: Constants, num_clients: int, epsilon: float) -> float:
    """C_0 of Eq. (formal-rate-constants).

    1 + (30 + 12/ε) [(32N + 8σ^2) L^2 + 2 L_s^2] + (54N + 12σ^2) L.
    """
    return _c_0(constants, num_clients, 30 + 12 / checked_coverage(epsilon), 54)


def c_0_coverage_free(constants: Constants, num_clients: int) -> float:
    """Return the C_0 that the same proof gives without ε; docs/theory.md derives it.

    1 + 26 [(32N + 8σ^2) L^2 + 2 L_s^2] + (52N + 12σ^2) L, by measuring the spread of the a_i from
    ∇f instead of from their mean.
    """
    return _c_0(constants, num_clients, 26, 52)


def _c_0(constants: Constants, num_clients: int, drift: float, clients: float) -> float:
    at_least(1, clients=num_clients)
    smooth, noise = constants.smoothness, constants.noise
    inner = (32 * num_clients + 8 * noise) * smooth**2 + 2 * constants.surrogate_smoothness**2
    return 1 + drift * inner + (clients * num_clients + 12 * noise) * smooth


def c_star(constants: Constants, num_clients: int, epsilon: float, zero: float) -> float:
    """C_star of Eq. (formal-rate-constants), from ``zero`` = C_0.

    max{1, 8 L^2 (1 + 2N/ε), (2NL/ε)^2, 144 C_0^2 (1 + a_H)^2}.
    """
    reach = 2 * num_clients / checked_coverage(epsilon)
    return max(
        1.0,
        8 * constants.smoothness**2 * (1 + reach),
        (reach * constants.smoothness) ** 2,
        144 * zero**2 * (1 + constants.affine) ** 2,
    )


def c_rate(constants: Constants, zero: float) -> float:
    """C_rate = 4Δ + (8 + 6ζ^2) C_0, Eq. (formal-convergence-rate)."""
    return 4 * constants.gap + (8 + 6 * constants.heterogeneity) * zero


def horizon(star: float, dimension: float) -> float:
    """Return the least T that the theorem covers, C_star D, Eq. (rate-regime)."""
    return star * dimension


def step_size(local_steps: int, rounds: float, dimension: float) -> float:
    """η = 1 / (E sqrt(T D)), Eq. (rate-stepsizes)."""
    at_least(1, local_steps=local_steps)
    return 1 / (local_steps * math.sqrt(rounds * dimension))


def radius(rounds: float, dimension: float, remainder: float) -> float:
    """Return the largest μ: (D/T)^{1/4} / sqrt(M_p), Eq. (rate-stepsizes); inf where M_p = 0."""
    return (dimension / rounds) ** 0.25 / math.sqrt(remainder) if remainder else math.inf


def proof_coefficient(eta: float, local_steps: int, cohort: int, dimension: float) -> float:
    """A_p(η) = η (E + D) / K + η^2 (E-1)^2 D, Eq. (rate-coefficient)."""
    return eta * (local_steps + dimension) / cohort + (eta * (local_steps - 1)) ** 2 * dimension


def optimization_term(rate: float, dimension: float, rounds: float) -> float:
    """First term of the bound, C_rate sqrt(D / T)."""
    return rate * math.sqrt(dimension / rounds)


def representation_term(heterogeneity: float, skew: float) -> float:
    """Second term of the bound, 6 ζ^2 χ^2(p); it does not shrink with T."""
    return 6 * heterogeneity * skew


def bound(
    constants: Constants, p: np.ndarray, dims: np.ndarray, q: int, rounds: float, epsilon: float
) -> float:
    """Return the theorem's right-hand side, Eq. (formal-convergence-rate)."""
    rate = c_rate(constants, c_0(constants, len(p), epsilon))
    first = optimization_term(rate, weighted_dimension(p, dims, q), rounds)
    return first + representation_term(constants.heterogeneity, chi_squared(p))
