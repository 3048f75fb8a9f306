"""Checks of vectors with one entry per client, and of a cohort drawn from them.

An error names the first bad entry and the rule it breaks.
"""

import numpy as np

from hofl.core.errors import HoflError

SUM_TOLERANCE = 1e-9
"""How far shares may miss their sum or bounds: far above rounding, far below any real share."""


def vector(values: np.ndarray, what: str) -> np.ndarray:
    """Return values as float64 [N]."""
    converted = np.asarray(values, dtype=np.float64)
    if converted.ndim != 1:
        raise HoflError(f"{what} must be a vector, got shape {converted.shape}.")
    return converted


def refuse(bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    """Raise when any entry is bad: the rule, the first bad entry, and how many more there are."""
    entries = np.flatnonzero(bad)
    if len(entries):
        others = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
        raise HoflError(f"{rule}: entry {entries[0]} is {values[entries[0]]}{others}.")


def check_scores(scores: np.ndarray, what: str = "score") -> np.ndarray:
    """Return scores or costs as float64 [N]; refuse infinite, undefined and negative ones."""
    scores = vector(scores, f"{what}s")
    refuse(
        ~(np.isfinite(scores) & (scores >= 0)), scores, f"{what}s must be finite and not negative"
    )
    return scores


def check_shares(p: np.ndarray, most: float, bounds: str) -> np.ndarray:
    """Return shares p as float64 [N]: 0 <= p_i <= most, sum 1; ``bounds`` names their range."""
    p = vector(p, "shares")
    within = (p >= -SUM_TOLERANCE) & (p <= most + SUM_TOLERANCE)  # NaN is not within
    refuse(~within, p, f"shares must lie in {bounds}")
    if abs(p.sum() - 1) > SUM_TOLERANCE:
        raise HoflError(f"shares must sum to 1, got {p.sum():.12g} over {len(p)} clients.")
    return p


def check_cohort(cohort: int, clients: int) -> None:
    """Refuse a K for which K distinct clients cannot be drawn from N."""
    if not 1 <= cohort <= clients:
        raise HoflError(
            f"a cohort of {cohort} cannot be drawn from {clients} clients: 1 <= K <= N is needed."
        )
