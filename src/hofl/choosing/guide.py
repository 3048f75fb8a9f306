"""Choosing beta without training: by scenario, and by a coverage budget.

Appendix "Choosing beta in Practice" of the paper; its third way, pilot runs, needs a model.

>>> coverage_cap(16, clients=30, cohort=6, rounds=160)
0.5
"""

from dataclasses import dataclass

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_cohort

CANDIDATES = (0.0, 0.25, 0.5, 0.75)
"""The values that the paper compares."""

DATA = {
    "same": (0.75, "client data represent the same population, so preferring some loses little"),
    "unknown": (0.5, "intermediate heterogeneity, or limited knowledge of it"),
    "skewed": (0.25, "pronounced skew: the data of clients that are left out are missing"),
}
"""How alike the clients' data are: the paper's starting value and why."""


@dataclass(frozen=True)
class BetaAdvice:
    """A starting value of beta and the reasons for it."""

    beta: float
    reason: str


def advise(data: str, *, dimensions_differ: bool = True, narrow: bool = False) -> BetaAdvice:
    """Return the paper's starting value for a scenario.

    Args:
        data: a key of ``DATA``.
        dimensions_differ: the devices' zeroth-order dimensions differ substantially.
        narrow: the preferred clients represent only a narrow part of the population. The paper asks
            for "a smaller preference" then; we take one step down its grid.
    """
    if data not in DATA:
        raise HoflError(f"unknown kind of data {data!r}: choose one of {', '.join(DATA)}.")
    if not dimensions_differ:
        return BetaAdvice(0.0, "equal zeroth-order dimensions: there is nothing to prefer")
    beta, reason = DATA[data]
    if narrow:
        beta -= 0.25
        reason += "; one step less: the preferred clients are a narrow part of the population"
    return BetaAdvice(beta, reason)


def coverage_cap(min_participations: float, *, clients: int, cohort: int, rounds: int) -> float:
    """Return the largest beta with m expected participations for everyone, 1 - mN / (KT).

    Eq. (app-beta-coverage-cap). Beta stays below 1, so m = 0 allows every value.
    """
    check_cohort(cohort, clients)
    uniform = cohort * rounds / clients
    if not 0 <= min_participations <= uniform:
        raise HoflError(
            f"min_participations {min_participations:g} cannot be met: it must lie in [0, KT/N] = "
            f"[0, {uniform:g}], since even uniform sampling expects KT/N per client. Lower it or "
            "add rounds."
        )
    return 1 - min_participations / uniform


def allowed(
    candidates: tuple[float, ...], min_participations: float | None, **fleet: int
) -> tuple[float, ...]:
    """Return the candidates within the coverage cap, ascending; all of them without a budget."""
    if min_participations is None:
        return tuple(sorted(candidates))
    cap = coverage_cap(min_participations, **fleet)
    kept = tuple(sorted(beta for beta in candidates if beta <= cap + 1e-12))
    if not kept:
        raise HoflError(
            f"no candidate is within the coverage cap beta <= {cap:.4g}: add a smaller beta."
        )
    return kept


def expected_participations(p: np.ndarray, cohort: int, rounds: int) -> np.ndarray:
    """Return T K p_i of every client [N], Eq. (app-beta-coverage)."""
    return rounds * cohort * p
