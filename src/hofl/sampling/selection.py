"""Which beta? Paired comparisons of candidates, and the smaller one when they are inconclusive.

Candidates are compared by the held-out loss of every client after trainings of several seeds:
d_si = loss of the one - loss of the other in training s at client i. Clients are paired (the same
client under both), trainings too (a seed draws the same minibatches and directions). Both are
sources of chance: all clients of one training share its luck, so that more clients do not make a
lucky training honest. With the mean squares MS_S between trainings and MS_N between clients of the
two-way table, the variance of the mean difference is estimated by

    (MS_S + MS_N) / (S N) >= (MS_S + MS_N - MS_error) / (S N),

the right-hand side being unbiased for clients and trainings drawn at random: the left one counts
the residual twice, is never negative, and errs to the side of "inconclusive". The statistic is
compared with Student's t at Satterthwaite's degrees of freedom. A single training has no MS_S: the
test is then the paired t-test over clients, and the training's own luck is not in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.errors import HoflError


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
    """How much larger the losses ``first`` [S, N] are than ``second`` [S, N]."""
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if d.ndim != 2 or d.size < 2:
        raise HoflError(f"at least two paired losses are needed, got shape {d.shape}.")
    if not np.isfinite(d).all():
        raise HoflError("a held-out loss is not finite: lower method.lr.")
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
        inconclusive: the best, or not surely worse than it.
    """

    beta: float
    loss: float
    behind: Difference
    inconclusive: bool

    def summary(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "behind": vars(self.behind)}


def standings(losses: Mapping[float, np.ndarray], level: float) -> list[Standing]:
    """Compare each candidate's losses [S, N] with the best's, by ascending beta.

    Args:
        losses: per beta.
        level: a p-value below this is conclusive.
    """
    means = {beta: float(np.mean(found)) for beta, found in losses.items()}
    best = min(sorted(means), key=means.__getitem__)
    found = []
    for beta in sorted(losses):
        behind = difference(losses[beta], losses[best])
        sure = beta != best and behind.p_value < level
        found.append(Standing(beta, means[beta], behind, not sure))
    return found


def choice(found: Sequence[Standing]) -> float:
    """The smallest beta that is not surely worse than the best."""
    return min(one.beta for one in found if one.inconclusive)


def survivors(found: Sequence[Standing]) -> list[float]:
    """The better half, and every smaller beta than the best that is not surely worse than it.

    Without the second part a small beta could be thrown out that the final rule would have chosen.
    """
    ranked = sorted(found, key=lambda one: (one.loss, one.beta))
    half = {one.beta for one in ranked[: math.ceil(len(ranked) / 2)]}
    kept = {one.beta for one in found if one.inconclusive and one.beta < ranked[0].beta}
    return sorted(half | kept)


def rungs(candidates: int, rounds: int) -> list[int]:
    """Lengths at which halving decides: doubling, about as many as halvings to one candidate.

    >>> rungs(4, 20)
    [10, 20]
    """
    count = max(1, math.ceil(math.log2(candidates)))
    if rounds < 2 ** (count - 1):
        raise HoflError(
            f"{candidates} candidates need at least {2 ** (count - 1)} pilot rounds, got {rounds}."
        )
    return [rounds // 2**k for k in reversed(range(count))]


def upper_t(t: float, freedom: float) -> float:
    """P(T > t) of Student's t: half of I_x(freedom/2, 1/2) at x = freedom / (freedom + t^2)."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return tail if t >= 0 else 1 - tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by Lentz's continued fraction, on the side of its mean where that converges."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(front + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + step * d) or tiny)
            c = (1 + step / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
