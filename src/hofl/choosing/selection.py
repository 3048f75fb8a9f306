"""Which beta? Paired comparisons of candidates, and the smaller one when they are inconclusive.

Candidates are compared by the held-out loss of every client after trainings of several seeds, both
of them paired (``hofl.core.paired``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.paired import Difference, difference


@dataclass(frozen=True)
class CandidateStanding:
    """One candidate among the others.

    Args:
        beta: the candidate.
        loss: mean held-out loss over clients and trainings.
        behind: how far it is behind the best; zero for the best itself.
        inconclusive: the best, or not significantly worse than it.
    """

    beta: float
    loss: float
    behind: Difference
    inconclusive: bool

    def summary(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "behind": self.behind.summary()}


def standings(losses: Mapping[float, np.ndarray], level: float) -> list[CandidateStanding]:
    """Compare each candidate's losses [S, N] with the best's, by ascending beta.

    Args:
        losses: per beta.
        level: a p-value below this is conclusive.
    """
    means = {beta: float(np.mean(table)) for beta, table in losses.items()}
    best = min(sorted(means), key=means.__getitem__)
    ranking = []
    for beta in sorted(losses):
        behind = difference(losses[beta], losses[best])
        worse = beta != best and behind.p_value < level
        ranking.append(CandidateStanding(beta, means[beta], behind, not worse))
    return ranking


def choice(ranking: Sequence[CandidateStanding]) -> float:
    """Return the smallest beta that is not significantly worse than the best."""
    return min(standing.beta for standing in ranking if standing.inconclusive)


def survivors(ranking: Sequence[CandidateStanding]) -> list[float]:
    """Return the better half, and all inconclusive betas that are smaller than the best.

    Without the second part, halving could drop a small beta that the final rule would choose.
    """
    by_loss = sorted(ranking, key=lambda standing: (standing.loss, standing.beta))
    half = {standing.beta for standing in by_loss[: math.ceil(len(by_loss) / 2)]}
    smaller = {s.beta for s in ranking if s.inconclusive and s.beta < by_loss[0].beta}
    return sorted(half | smaller)


def rungs(candidates: int, rounds: int) -> list[int]:
    """Return the lengths at which halving decides: doubling, one per halving of the candidates.

    >>> rungs(4, 20)
    [10, 20]
    """
    count = max(1, math.ceil(math.log2(candidates)))
    if rounds < 2 ** (count - 1):
        raise HoflError(
            f"{candidates} candidates need at least {2 ** (count - 1)} pilot rounds, got {rounds}."
        )
    return [rounds // 2**k for k in reversed(range(count))]
