"""Audit of client sampling: who took part, against who was expected to, and whether it is chance.

Under the policy the count C_i of client i has mean E_i = sum_t K p_i(t) and variance V_i =
sum_t K p_i(t) (1 - K p_i(t)); rounds are independent, and within a round DepRound correlates
clients negatively. Joint inclusion probabilities are not known, so the usual chi-square table does
not apply, and treating counts as independent would make the check too strict.

The statistic is X^2 = sum_g (C_g - E_g)^2 / V_g. Let S be the covariance of the counts. Its rows
sum to zero and its off-diagonal entries are not positive, so, as in the proof of the paper's lemma
on the variance of averaged local updates,

    x^T S x = 1/2 sum_{i != j} -S_ij (x_i - x_j)^2 <= sum_{i != j} -S_ij (x_i^2 + x_j^2)
            = 2 sum_i V_i x_i^2.

For approximately normal counts X^2 is thus sum_j lambda_j Z_j^2 with 0 <= lambda_j <= 2 and sum
lambda_j <= G, the number of groups. The heaviest upper tail with these limits has G/2 weights of
2, and the reference is 2 chi^2 with G/2 degrees of freedom: conservative, small p-values are at
least as rare as they say. Clients are pooled in order of E_i until V_g >= 5 so that counts are
nearly normal; by the same inequality the pooled V_g = sum V_i keep the reference conservative.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hofl.core.tails import upper_gamma

MIN_VARIANCE = 5.0
"""A pooled count with this variance is nearly normal: its excess kurtosis is at most 1/5."""
ROUNDING = 1e-9
"""Variances below this belong to clients that are certain to be in or out."""


@dataclass(frozen=True)
class Audit:
    """Realised against expected participations.

    Args:
        expected: E_i, [N].
        realised: C_i, [N].
        groups: G, the number of pooled groups that were compared.
        statistic: X^2.
        p_value: upper bound of the probability of an X^2 this large under the policy.
        impossible: clients in although their share is 0, or out although it is 1/K.
    """

    expected: np.ndarray
    realised: np.ndarray
    groups: int
    statistic: float
    p_value: float
    impossible: tuple[int, ...]

    def summary(self) -> dict[str, Any]:
        """Return plain values, for a run's summary and for JSON."""
        return {
            "expected": [round(float(value), 6) for value in self.expected],
            "realised": self.realised.tolist(),
            "groups": self.groups,
            "statistic": self.statistic,
            "p_value": self.p_value,
            "impossible": list(self.impossible),
        }


def verdict(audit: dict[str, Any]) -> str:
    """Say in one line what an audit's summary means."""
    if audit["impossible"]:
        return f"sampling audit: impossible participation of client {audit['impossible'][0]}"
    if audit["groups"] < 2:
        return "sampling audit: too few rounds to compare clients"
    finding = "as expected" if audit["p_value"] >= 0.001 else "NOT as the policy says"
    return (
        f"sampling audit: participations {finding} (X2 = {audit['statistic']:.1f} over "
        f"{audit['groups']} groups of clients, p <= {audit['p_value']:.3g})"
    )


def audit(rounds: Iterable[tuple[Sequence[int], np.ndarray]]) -> Audit:
    """Compare the cohort S_t of every round with the shares p(t) [N] that it was drawn from."""
    expected = variance = realised = np.zeros(0)
    for cohort, p in rounds:
        if not len(expected):
            expected, variance = np.zeros(len(p)), np.zeros(len(p))
            realised = np.zeros(len(p), dtype=np.int64)
        inclusion = len(cohort) * p
        expected += inclusion
        variance += inclusion * np.clip(1 - inclusion, 0, 1)
        realised[np.asarray(cohort, dtype=np.int64)] += 1
    return compare(expected, variance, realised)


def compare(expected: np.ndarray, variance: np.ndarray, realised: np.ndarray) -> Audit:
    """Compare E_i and V_i with C_i, [N] each."""
    certain = variance < ROUNDING
    impossible = np.flatnonzero(certain & (np.abs(realised - expected) > 0.5))
    order = np.argsort(expected, kind="stable")
    order = order[~certain[order]]
    starts = _groups(variance[order])
    statistic, p_value = 0.0, 1.0
    if len(starts) > 1:  # one group is everyone, and everyone's total is always KT
        deviation = np.add.reduceat((realised - expected)[order], starts)
        statistic = float(np.sum(deviation**2 / np.add.reduceat(variance[order], starts)))
        p_value = upper_gamma(len(starts) / 4, statistic / 4)
    return Audit(
        expected=expected,
        realised=realised,
        groups=len(starts),
        statistic=statistic,
        p_value=0.0 if len(impossible) else p_value,
        impossible=tuple(impossible.tolist()),
    )


def _groups(variances: np.ndarray) -> list[int]:
    """Where groups of variance >= 5 start; the last one extends to the end."""
    starts, start, total = [], 0, 0.0
    for position, variance in enumerate(variances.tolist()):
        total += variance
        if total >= MIN_VARIANCE:
            starts.append(start)
            start, total = position + 1, 0.0
    return starts
