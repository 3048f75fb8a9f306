"""The constants of Assumptions 1-4 and the checks of what the results take: dims, q, p, K."""

import math
from dataclasses import dataclass, fields

import numpy as np

from hofl.errors import HoflError
from hofl.vectors import refuse, shares

LARGEST = 1e30
"""Of any constant: C_star holds the fourth power of L, and floating-point numbers end at 1e308."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the assumptions (appendix "Convergence Analysis") promise about the problem.

    Args:
        smoothness: L > 0, Lipschitz constant of every client's gradient (Assumption 1).
        surrogate_smoothness: L_s, the same for the surrogate's bottom gradient (Assumption 3).
        noise: sigma^2, variance of a minibatch gradient (Assumption 2).
        affine: a_H, the part of the clients' disagreement that vanishes with the gradient.
        heterogeneity: zeta^2, the part that stays (Assumption 4):
            H(w) = (1/N) sum_i ||grad f_i - grad f||^2 <= a_H ||grad f||^2 + zeta^2.
        gap: Delta = f(w_0) - f_inf.
    """

    smoothness: float = 1.0
    surrogate_smoothness: float = 1.0
    noise: float = 1.0
    affine: float = 0.0
    heterogeneity: float = 0.0
    gap: float = 1.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not 0 <= value < math.inf:
                raise HoflError(f"{option.name} must be finite and >= 0, got {value}.")
            if value > LARGEST:
                raise HoflError(f"{option.name} must be at most {LARGEST:g}, got {value:g}.")
        if self.smoothness == 0:
            raise HoflError("smoothness must be positive, got 0: L bounds the curvature.")


def checked_dims(dims: np.ndarray) -> np.ndarray:
    """Zeroth-order dimensions d_ZO [N] as float64, or an error that names the bad entry."""
    d = np.asarray(dims, dtype=np.float64)
    if d.ndim != 1 or len(d) == 0:
        raise HoflError(f"dimensions must be a vector of one entry per client, got {d.shape}.")
    whole = (d >= 0) & (d < np.inf) & (d == np.floor(d))
    refuse(~whole, d, "dimensions must be whole and >= 0")
    return d


def checked_shares(p: np.ndarray, num_clients: int) -> np.ndarray:
    """Shares p [N] as float64: one per client, in [0, 1], of sum 1; K plays no part here."""
    if np.shape(p) != (num_clients,):
        raise HoflError(f"p must hold {num_clients} shares, one per client, got {np.shape(p)}.")
    return shares(p, 1.0, "[0, 1]")


def at_least(least: int, **counts: int) -> None:
    """Counts such as q, E, T, K; the keyword is the name in the message."""
    for name, value in counts.items():
        if value < least:
            raise HoflError(f"{name} must be at least {least}, got {value}.")


def checked_coverage(epsilon: float) -> float:
    """The floor epsilon in (0, 1] of p_i >= epsilon / N."""
    if not 0 < epsilon <= 1:
        raise HoflError(f"epsilon must lie in (0, 1], got {epsilon}.")
    return epsilon
