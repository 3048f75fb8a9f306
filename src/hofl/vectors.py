"""Checks of NumPy vectors with one entry per client; an error names the entry and says why."""

import numpy as np

from hofl.errors import HoflError

SUM_TOLERANCE = 1e-9
"""How far shares may miss their sum or bounds: far above rounding, far below any real share."""


def vector(values: np.ndarray, what: str) -> np.ndarray:
    """Values as float64 [N]."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise HoflError(f"{what} must be a vector, got shape {found.shape}.")
    return found


def refuse(bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    """Raise when any entry is bad: the rule, the first bad entry, and how many more there are."""
    entries = np.flatnonzero(bad)
    if len(entries):
        others = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
        raise HoflError(f"{rule}: entry {entries[0]} is {values[entries[0]]}{others}.")


def shares(p: np.ndarray, most: float, bounds: str) -> np.ndarray:
    """Shares p as float64 [N] with 0 <= p_i <= most and sum 1; ``bounds`` is their name."""
    p = vector(p, "shares")
    within = (p >= -SUM_TOLERANCE) & (p <= most + SUM_TOLERANCE)  # NaN is not within
    refuse(~within, p, f"shares must lie in {bounds}")
    if abs(p.sum() - 1) > SUM_TOLERANCE:
        raise HoflError(f"shares must sum to 1, got {p.sum():.12g} over {len(p)} clients.")
    return p
