"""Which beta? Paired comparisons of candidates, and the smaller one when they are inconclusive.

Candidates are compared by the held-out loss of every client after trainings of several seeds:
d_si = first loss - second loss in training s at client i. Clients are paired (the same client
under both), trainings too (a seed draws the same minibatches and directions). Both are sources of
chance: all clients of one training share its luck, and more clients do not average it out. With
the mean squares MS_S between trainings and MS_N between clients of the two-way table, the variance
of the mean difference is estimated by

    (MS_S + MS_N) / (S N) >= (MS_S + MS_N - MS_error) / (S N),

the right-hand side being unbiased for clients and trainings drawn at random: the left one counts
the residual twice, is never negative, and errs to the side of "inconclusive". The statistic is
compared with Student's t at Satterthwaite's degrees of freedom. A single training has no MS_S: the
test is then the paired t-test over clients, and the training's luck is not in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.tails import upper_t


@dataclass(frozen=True)
class Difference:
    """A mean paired difference of losses, its standard error, and how sure it is to be positive.

    Args:
        mean: mean over trainings and clients.
        error: standard error of the mean.
        p_value: one-sided, for "the true difference is not positive".
    """

    mean: float
    error: float
    p_value: float


def difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """Estimate how much larger the losses ``first`` [S, N] are than ``second`` [S, N]."""
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if d.ndim != 2 or d.size < 2:
        raise HoflError(f"at least two paired losses are needed, got shape {d.shape}.")
    if not np.isfinite(d).all():
        raise HoflError("a held-out loss is not finite: lower method.optimizer.lr.")
    seeds, clients = d.shape
    mean = float(d.mean())
    squares, freedom = [], []
    for others, axis in ((clients, 1), (seeds, 0)):
        means = d.mean(axis=axis)
        if len(means) > 1:
            squares.append(others * float(means.var(ddof=1)))
            freedom.append(len(means) - 1)
    error = math.sqrt(sum(squares) / d.size)
    if error <= 1e-12 * abs(mean) or error == 0:  # every pair says the same
        return Difference(mean, error, 0.0 if mean > 0 else 1.0)
    spread = sum(s**2 / f for s, f in zip(squares, freedom, strict=True))
    return Difference(mean, error, upper_t(mean / error, sum(squares) ** 2 / spread))


@dataclass(frozen=True)
class Standing:
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
        return {**vars(self), "behind": vars(self.behind)}


def standings(losses: Mapping[float, np.ndarray], level: float) -> list[Standing]:
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
        ranking.append(Standing(beta, means[beta], behind, not worse))
    return ranking


def choice(ranking: Sequence[Standing]) -> float:
    """Return the smallest beta that is not significantly worse than the best."""
    return min(standing.beta for standing in ranking if standing.inconclusive)


def survivors(ranking: Sequence[Standing]) -> list[float]:
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
