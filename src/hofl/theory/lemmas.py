"""The lemmas and the descent guarantee of the appendix "Convergence Analysis".

**Hybrid Estimator Moments** (lem:ho-moments): bias and variance of one local estimate of a client
with d = d_ZO bottom coordinates, Eq. (constants-def). All are 0 (and nu = sigma^2) for a client
that backpropagates everything, d = 0.

- kappa (κ): what q Gaussian directions add to the variance, per unit of squared bottom gradient.
- rho (ρ): bias of a forward difference of radius mu (μ).
- omega (ω): root mean square of the finite difference's remainder.
- nu (ν): the part of the variance that stays when the gradient is zero.

**Local Trajectory Drift and Statistics** (lem:multistep): E local steps of one client. tau (τ) =
η^2 (E-1)^2 bounds how far they drift; Q_i = ||g_i||^2 + κ_i ||Π_i g_i||^2 with g_i = ∇f_i(w_t).
It holds where :func:`drift_condition` does.

**Variance of Averaged Local Updates** (lem:round-variance) and **Multi-Step Trajectory Descent
Guarantee**: a_i = E[U_i] is client i's mean update, v_i = E||U_i - a_i||^2 its noise, and M =
(1/K) sum_{i in S} U_i the round's update, with S = DepRound(Kp).

Everything per client is [N].

>>> kappa(np.array([9, 0]), q=2).tolist()
[5.0, 0.0]
"""

import numpy as np

from hofl.core.errors import HoflError
from hofl.theory.assumptions import at_least, checked_dims, checked_shares


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


def reachable_cosine(
    share: float | np.ndarray, kappas: np.ndarray, estimates: int = 1
) -> np.ndarray:
    """Cosine between the mean of m independent estimates and the gradient they estimate [N].

    With minibatch gradients g, E g = ∇f, and ĝ = (1/q) sum_j u_j u_j^T g, Eq.
    (gaussian-fourth-moment) gives E||ĝ||^2 = (1 + κ) E||g||^2, and E ĝ = ∇f. So for m = 1

        cos^2 = (E<ĝ, ∇f>)^2 / (||∇f||^2 E||ĝ||^2) = share / (1 + κ),   share = ||∇f||^2 / E||g||^2,

    and the variance of a mean is that of one estimate over m. cos^2 is also the part of the
    guaranteed decrease of a full-gradient step, ||∇f||^2 / 2L, that a step along the mean keeps at
    its own best length: f(w - ηx) <= f(w) - η <x, ∇f> + η^2 L ||x||^2 / 2.

    Args:
        share: of the signal in E||g||^2, in [0, 1].
        kappas: κ_i [N]; 0 for exact gradients.
        estimates: m.
    """
    at_least(1, estimates=estimates)
    excess = (1 + kappas - share) / estimates
    return np.sqrt(share / (share + excess))


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


def round_variance_bound(
    p: np.ndarray,
    cohort: int,
    variances: np.ndarray,
    means: np.ndarray,
    centre: np.ndarray | None = None,
) -> float:
    """Var(M) <= (1/K) sum_i p_i [ v_i + 2 ||a_i - c||^2 ], Eq. (round-variance-bound).

    Args:
        p: shares [N].
        cohort: K.
        variances: v_i [N].
        means: a_i, [N, d].
        centre: c [d]. The paper takes c = (1/N) sum a_i, and so does None; the proof,
            ||a_i - a_j||^2 <= 2||a_i - c||^2 + 2||a_j - c||^2, holds for every c.
    """
    at_least(1, cohort=cohort)
    shares = checked_shares(p, len(means))
    c = means.mean(axis=0) if centre is None else centre
    spread = ((means - c) ** 2).sum(axis=1)
    return float(shares @ (variances + 2 * spread)) / cohort


def round_variance(
    inclusion_covariance: np.ndarray,
    p: np.ndarray,
    cohort: int,
    variances: np.ndarray,
    means: np.ndarray,
) -> float:
    """Var(M) itself: (1/K) sum p_i v_i + (1/K^2) sum_ij C_ij <a_i, a_j>, Eq. (cov-expansion).

    Args:
        inclusion_covariance: C = Cov(I) of the indicators of being drawn [N, N].
        p: shares [N].
        cohort: K.
        variances: v_i [N].
        means: a_i [N, d].
    """
    shares = checked_shares(p, len(means))
    selection = float((inclusion_covariance * (means @ means.T)).sum())
    return float(shares @ variances) / cohort + selection / cohort**2


def descent_bound(
    gap: float,
    smoothness: float,
    effective_step: float,
    biases_squared: np.ndarray,
    variances: np.ndarray,
) -> float:
    """Mean of ||∇f(w_t)||^2 <= 2Δ/(hT) + mean ||B_t||^2 + L h mean Var(M_t), Eq. (main-bound).

    Proposition "Multi-Step Trajectory Descent Guarantee".

    Args:
        gap: Δ = f(w_0) - f_inf.
        smoothness: L.
        effective_step: h = η E, at most 1/L.
        biases_squared: E||B_t||^2, B_t = sum_i p_i a_i - ∇f(w_t), per round [T].
        variances: E Var(M_t) or its bound :func:`round_variance_bound`, per round [T].
    """
    if not 0 < effective_step * smoothness <= 1:
        raise HoflError(
            f"h = eta E must lie in (0, 1/L] = (0, {1 / smoothness:g}], got {effective_step:g}."
        )
    rounds = len(biases_squared)
    if not rounds or len(variances) != rounds:
        raise HoflError(
            f"one bias and one variance per round: got {rounds} and {len(variances)}, of at least "
            "one round."
        )
    optimization = 2 * gap / (effective_step * rounds)
    noise = smoothness * effective_step * np.mean(variances)
    return float(optimization + np.mean(biases_squared) + noise)
