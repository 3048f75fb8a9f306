"""Memory that a whole cohort needs: C = (1/T) sum_t sum_{i in S_t} m_i (section 5.2, RQ2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hofl.core.secret import RunSecret
from hofl.sampling.policies import Policy, draw_cohort


@dataclass(frozen=True)
class Demand:
    """Bytes that the devices of a round need together, as a mean over rounds.

    Args:
        name: of the method.
        expected: K sum_i p_i m_i.
        simulated: the same over drawn cohorts.
    """

    name: str
    expected: float
    simulated: float


def cohort_demand(
    name: str,
    policy: Policy,
    dimensions: Sequence[int],
    peaks: Sequence[int],
    *,
    cohort: int,
    rounds: int,
    seed: int,
) -> Demand:
    """Return the demand of N clients with ZO dimensions d_i and peaks m_i under a policy."""
    scores, m = np.array(dimensions, dtype=np.float64), np.array(peaks, dtype=np.float64)
    expected = simulated = 0.0
    drawn_from = RunSecret.from_seed(seed).cohorts()
    for t in range(rounds):
        p = policy.marginals(scores, cohort, seed, t, rounds)
        expected += cohort * float(p @ m) / rounds
        simulated += float(m[draw_cohort(p, cohort, drawn_from, t)].sum()) / rounds
    return Demand(name, expected, simulated)


def equal_demand(name: str, peak: int, cohort: int) -> Demand:
    """Return the demand of a fleet whose devices all need the same."""
    return Demand(name, float(cohort * peak), float(cohort * peak))
