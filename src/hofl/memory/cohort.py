"""Memory that a whole cohort needs: C = (1/T) sum_t sum_{i in S_t} m_i (section 5.2, RQ2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hofl.core.secret import RunSecret
from hofl.memory.plan import MemoryPlan
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


def cohort_demands(
    plan: MemoryPlan,
    pure: MemoryPlan,
    boundaries: Sequence[int],
    policies: Mapping[float, Policy],
    *,
    cohort: int,
    rounds: int,
    seed: int,
) -> list[Demand]:
    """Return the demand of HO-FL under each policy, of FedAvg, and of DeComFL.

    Args:
        plan: of HO-FL's step.
        pure: of DeComFL's step on the same work.
        boundaries: b_i of each client, [N].
        policies: by beta.
        cohort: K.
        rounds: T.
        seed: of the run whose cohorts are drawn.
    """
    dimensions = [plan.plain[b].zo_params for b in boundaries]
    peaks = [plan.plain[b].peak_bytes for b in boundaries]
    draws: dict[str, int] = {"cohort": cohort, "rounds": rounds, "seed": seed}
    return [
        *(
            cohort_demand(f"HO-FL, beta {beta:g}", policy, dimensions, peaks, **draws)
            for beta, policy in policies.items()
        ),
        equal_demand("FedAvg", plan.plain[0].peak_bytes, cohort),
        equal_demand("DeComFL", pure.at(plan.model.num_blocks).peak_bytes, cohort),
    ]
