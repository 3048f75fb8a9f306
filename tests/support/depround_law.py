"""Oracle: the paper's DepRound, line by line in exact fractions, over all orders and coin flips."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

Law = dict[tuple[int, ...], Fraction]


def depround_law(x: Sequence[Fraction]) -> Law:
    """Probability of every cohort."""
    law: Law = defaultdict(Fraction)
    orders = list(itertools.permutations(range(len(x))))
    for order in orders:
        _follow(list(x), order, Fraction(1, len(orders)), law)
    return dict(law)


def law_of(shares: np.ndarray, cohort: int) -> Law:
    """DepRound's distribution over cohorts, in exact fractions."""
    return depround_law([Fraction(cohort * p).limit_denominator(10**6) for p in shares.tolist()])


def _follow(x: list[Fraction], order: Sequence[int], probability: Fraction, law: Law) -> None:
    fractional = [k for k in order if 0 < x[k] < 1]
    if len(fractional) < 2:
        assert not fractional
        law[tuple(k for k in range(len(x)) if x[k] == 1)] += probability
        return
    i, j = fractional[:2]
    plus, minus = min(1 - x[i], x[j]), min(x[i], 1 - x[j])
    for change, weight in ((plus, minus), (-minus, plus)):
        after = list(x)
        after[i], after[j] = x[i] + change, x[j] - change
        _follow(after, order, probability * weight / (plus + minus), law)


def covariance(law: Law, clients: int) -> np.ndarray:
    """Covariance of the inclusion indicators, [N, N]."""
    joint = np.zeros((clients, clients))
    for cohort, probability in law.items():
        joint[np.ix_(cohort, cohort)] += float(probability)
    return joint - np.outer(np.diag(joint), np.diag(joint))


def is_uniform(law: Law, clients: int, size: int) -> bool:
    """Every subset of this size equally likely, exactly."""
    every = set(itertools.combinations(range(clients), size))
    share = Fraction(1, math.comb(clients, size))
    return set(law) == every and all(probability == share for probability in law.values())
