"""Lemma "Variance of Averaged Local Updates" (lem:round-variance) and the descent guarantee.

a_i = E[U_i] is what client i would contribute on average, v_i = E||U_i - a_i||^2 its noise, and
M = (1/K) sum_{i in S} U_i the round's update, with S = DepRound(Kp).
"""

import numpy as np

from hofl.errors import HoflError
from hofl.theory.assumptions import at_least, checked_shares


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
