"""Paired differences: how much larger are these values than those, and how sure is it?

d_si = first - second in training s at client i. Clients are paired (the same client under both),
trainings too (a seed draws the same minibatches and directions). Both are sources of chance: all
clients of one training share its luck, and more clients do not average it out. With the mean
squares MS_S between trainings and MS_N between clients of the two-way table, the variance of the
mean difference is estimated by

    (MS_S + MS_N) / (S N) >= (MS_S + MS_N - MS_error) / (S N),

the right-hand side being unbiased for clients and trainings drawn at random: the left one counts
the residual twice, is never negative, and errs to the side of "inconclusive". The statistic is
compared with Student's t at Satterthwaite's degrees of freedom. A single training has no MS_S: the
test is then the paired t-test over clients, and the training's luck is not in it. With one value
per training, N = 1, it is the paired t-test over trainings.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.tails import t_quantile, upper_t


@dataclass(frozen=True)
class Difference:
    """A mean paired difference, its standard error, and how sure it is to be positive.

    Args:
        mean: mean over trainings and clients.
        error: standard error of the mean.
        p_value: one-sided, for "the true difference is not positive".
        freedom: degrees of freedom of the error; infinite where every pair says the same.
    """

    mean: float
    error: float
    p_value: float
    freedom: float = math.inf

    @property
    def two_sided(self) -> float:
        """p-value for "there is no difference"."""
        if self.error == 0:
            return float(self.mean == 0)
        return 2 * min(self.p_value, 1 - self.p_value)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of the true difference."""
        if self.error == 0:
            return self.mean, self.mean
        half = self.error * t_quantile((1 - level) / 2, self.freedom)
        return self.mean - half, self.mean + half

    def summary(self) -> dict[str, Any]:
        """Return plain values."""
        return {"mean": self.mean, "error": self.error, "p_value": self.p_value}


def difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """Estimate how much larger the values ``first`` [S, N] are than ``second`` [S, N]."""
    d = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if d.ndim != 2 or d.size < 2:
        raise HoflError(f"at least two paired values are needed, got shape {d.shape}.")
    if not np.isfinite(d).all():
        raise HoflError("a loss or score is not finite: lower method.optimizer.lr.")
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
        return Difference(mean, 0.0, 0.0 if mean > 0 else 1.0)
    spread = sum(s**2 / f for s, f in zip(squares, freedom, strict=True))
    satterthwaite = sum(squares) ** 2 / spread
    return Difference(mean, error, upper_t(mean / error, satterthwaite), satterthwaite)
