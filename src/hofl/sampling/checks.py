"""Checks of what policies and draws are given; an error names the entry and says why."""

import numpy as np

from hofl.errors import HoflError
from hofl.vectors import SUM_TOLERANCE, refuse, shares, vector


def check_cohort(cohort: int, clients: int) -> None:
    """K distinct clients can be drawn from N: 1 <= K <= N."""
    if not 1 <= cohort <= clients:
        raise HoflError(
            f"a cohort of {cohort} cannot be drawn from {clients} clients: 1 <= K <= N is needed."
        )


def check_scores(scores: np.ndarray, what: str = "score") -> np.ndarray:
    """Scores or costs as float64 [N]: finite and not negative."""
    scores = vector(scores, f"{what}s")
    refuse(
        ~(np.isfinite(scores) & (scores >= 0)), scores, f"{what}s must be finite and not negative"
    )
    return scores


def check_shares(p: np.ndarray, cohort: int) -> np.ndarray:
    """Shares p as float64 [N] with 0 <= p_i <= 1/K and sum 1: what DepRound(K p) can realise."""
    p = vector(p, "shares")
    check_cohort(cohort, len(p))
    return shares(p, 1 / cohort, f"[0, 1/K] = [0, {1 / cohort:.6g}]")


def check_inclusion(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Probabilities x as float64 [N] in [0, 1] with whole sum K, and K."""
    x = vector(x, "inclusion probabilities")
    within = (x >= -SUM_TOLERANCE) & (x <= 1 + SUM_TOLERANCE)
    refuse(~within, x, "inclusion probabilities must lie in [0, 1]")
    total = x.sum()
    size = round(total)
    if abs(total - size) > SUM_TOLERANCE * max(size, 1000):  # x = K p: the error of p, K times
        raise HoflError(f"inclusion probabilities must sum to a whole number, got {total:.12g}.")
    return x, size


def check_floor(floor: float) -> None:
    """The epsilon of the feasible set C: everyone keeps at least epsilon / N."""
    if not 0 <= floor <= 1:
        raise HoflError(f"floor (epsilon) must lie in [0, 1], got {floor}.")
