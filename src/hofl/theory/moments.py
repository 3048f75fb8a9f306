"""Lemma "Hybrid Estimator Moments" (lem:ho-moments): bias and variance of one local estimate.

Per client with d = d_ZO bottom coordinates, Eq. (constants-def); all are 0 (and nu = sigma^2) for a
client that backpropagates everything, d = 0.

kappa (κ): what q Gaussian directions add to the variance, per unit of squared bottom gradient.
rho (ρ): bias of a forward difference of radius mu (μ).
omega (ω): root mean square of the finite difference's remainder.
nu (ν): the part of the variance that stays when the gradient is zero.

>>> kappa(np.array([9, 0]), q=2).tolist()
[5.0, 0.0]
"""

import numpy as np

from hofl.theory.assumptions import at_least, checked_dims


def kappa(dims: np.ndarray, q: int) -> np.ndarray:
    """κ_i = (d_i + 1) / q [N], by the Gaussian fourth moment, Eq. (gaussian-fourth-moment)."""
    at_least(1, q=q)
    d = checked_dims(dims)
    return np.where(d > 0, (d + 1) / q, 0.0)


def rho_squared(dims: np.ndarray, mu: float, surrogate_smoothness: float) -> np.ndarray:
    """ρ_i^2 = μ^2 L_s^2 d_i [N]: bound of the squared bias, Eq. (est-bias-bound)."""
    return (mu * surrogate_smoothness) ** 2 * checked_dims(dims)


def omega_squared(dims: np.ndarray, mu: float, surrogate_smoothness: float) -> np.ndarray:
    """ω_i^2 = μ^2 L_s^2 d(d+2)(d+4) / 4 [N]: the remainder, Eq. (remainder-variance)."""
    return (mu * surrogate_smoothness) ** 2 / 4 * sixth_moment(dims)


def sixth_moment(dims: np.ndarray) -> np.ndarray:
    """E||u||^6 = d(d+2)(d+4) of u ~ N(0, I_d) [N]."""
    d = checked_dims(dims)
    return d * (d + 2) * (d + 4)


def nu(
    dims: np.ndarray,
    q: int,
    mu: float,
    surrogate_smoothness: float,
    noise: float | np.ndarray,
    bottom_noise: float | np.ndarray | None = None,
) -> np.ndarray:
    """ν_i = 2σ_i^2 + 2 κ_i σ_{i,ZO}^2 + 2 ω_i^2 [N], Eq. (constants-def); σ_i^2 when d_i = 0.

    Args:
        dims: d_i [N].
        q: directions per step.
        mu: radius.
        surrogate_smoothness: L_s.
        noise: σ^2, of the whole minibatch gradient.
        bottom_noise: σ_ZO^2 <= σ^2, of its bottom part; σ^2 when not known.
    """
    bottom = noise if bottom_noise is None else bottom_noise
    hybrid = 2 * noise + 2 * kappa(dims, q) * bottom
    hybrid = hybrid + 2 * omega_squared(dims, mu, surrogate_smoothness)
    return np.where(checked_dims(dims) > 0, hybrid, noise)


def variance_bound(
    kappas: np.ndarray, nus: np.ndarray, bottom_gradient_squared: np.ndarray
) -> np.ndarray:
    """E||ĝ - Eĝ||^2 <= 2 κ_i ||Π_i ∇f_i||^2 + ν_i [N], Eq. (ho-energy)."""
    return 2 * kappas * bottom_gradient_squared + nus


def second_moment_bound(
    kappas: np.ndarray,
    nus: np.ndarray,
    gradient_squared: np.ndarray,
    bottom_gradient_squared: np.ndarray,
) -> np.ndarray:
    """E||ĝ||^2 <= 2 ||∇f_i||^2 + 2 κ_i ||Π_i ∇f_i||^2 + ν_i [N], Eq. (est-second-bound)."""
    return 2 * gradient_squared + variance_bound(kappas, nus, bottom_gradient_squared)
