"""The constants of Assumptions 1-4, and checks of the results' arguments: dims, q, p, K."""

import math
from dataclasses import dataclass, fields

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_shares, refuse

LARGEST = 1e30
"""Of any constant: C_star holds the fourth power of L, and floating-point numbers end at 1e308."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants that the assumptions (appendix "Convergence Analysis") state of a problem.

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
    """Return zeroth-order dimensions d_ZO [N] as float64; refuse the first bad entry."""
    d = np.asarray(dims, dtype=np.float64)
    if d.ndim != 1 or len(d) == 0:
        raise HoflError(f"dimensions must be a vector of one entry per client, got {d.shape}.")
    whole = (d >= 0) & (d < np.inf) & (d == np.floor(d))
    refuse(~whole, d, "dimensions must be whole and >= 0")
    return d


def checked_shares(p: np.ndarray, num_clients: int) -> np.ndarray:
    """Return shares p [N] as float64: one per client, in [0, 1], of sum 1, whatever K is."""
    if np.shape(p) != (num_clients,):
        raise HoflError(f"p must hold {num_clients} shares, one per client, got {np.shape(p)}.")
    return check_shares(p, 1.0, "[0, 1]")


def at_least(least: int, **counts: int) -> None:
    """Refuse counts (q, E, T, K) below ``least``; the keyword is the name in the message."""
    for name, value in counts.items():
        if value < least:
            raise HoflError(f"{name} must be at least {least}, got {value}.")


def checked_coverage(epsilon: float) -> float:
    """Return the floor epsilon of p_i >= epsilon / N; refuse one outside (0, 1]."""
    if not 0 < epsilon <= 1:
        raise HoflError(f"epsilon must lie in (0, 1], got {epsilon}.")
    return epsilon
