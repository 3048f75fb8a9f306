"""Lemma "Local Trajectory Drift and Statistics" (lem:multistep): E local steps of one client.

tau (τ) = η^2 (E-1)^2 measures how far the steps can carry; Q_i = ||g_i||^2 + κ_i ||Π_i g_i||^2 with
g_i = ∇f_i(w_t). Everything is per client, [N], and holds where :func:`drift_condition` does.
"""

import numpy as np

from hofl.errors import HoflError
from hofl.theory.assumptions import at_least


def tau(eta: float, local_steps: int) -> float:
    """τ = η^2 (E - 1)^2."""
    at_least(1, local_steps=local_steps)
    if not eta > 0:
        raise HoflError(f"eta must be positive, got {eta}.")
    return (eta * (local_steps - 1)) ** 2


def drift_condition(
    eta: float, local_steps: int, kappas: np.ndarray, smoothness: float
) -> np.ndarray:
    """4 (1 + κ_i) L^2 τ [N]: the lemma needs it to be at most 1/2."""
    return 4 * (1 + kappas) * smoothness**2 * tau(eta, local_steps)


def drift_radius(
    eta: float,
    local_steps: int,
    kappas: np.ndarray,
    nus: np.ndarray,
    gradient_squared: np.ndarray,
    bottom_gradient_squared: np.ndarray,
) -> np.ndarray:
    """D_i = 2 τ (4 Q_i + ν_i) >= E||w_i^e - w_t||^2 for every e [N], Eq. (trajectory-bound)."""
    energy = gradient_squared + kappas * bottom_gradient_squared
    return 2 * tau(eta, local_steps) * (4 * energy + nus)


def mean_update_error(
    radius: np.ndarray, rhos_squared: np.ndarray, smoothness: float
) -> np.ndarray:
    """||a_i - g_i||^2 <= 2 L^2 D_i + 2 ρ_i^2 [N], Eq. (drift-mean-bounds)."""
    return 2 * smoothness**2 * radius + 2 * rhos_squared


def local_variance_bound(
    radius: np.ndarray,
    rhos_squared: np.ndarray,
    kappas: np.ndarray,
    nus: np.ndarray,
    bottom_gradient_squared: np.ndarray,
    local_steps: int,
    smoothness: float,
) -> np.ndarray:
    """v_i <= 3 L^2 D_i + 3 ρ_i^2 + (3/E)(4 κ_i ||Π_i g_i||^2 + 4 κ_i L^2 D_i + ν_i) [N].

    Eq. (multistep-var-bound): drift and bias of the steps, plus the average of E martingale
    differences, which is where more local steps help.
    """
    drift = smoothness**2 * radius
    fresh = 4 * kappas * (bottom_gradient_squared + drift) + nus
    return 3 * drift + 3 * rhos_squared + 3 / local_steps * fresh
