"""Robust aggregation: coordinate by coordinate, the extremes are left out before averaging.

With a cut of c values at each end, up to c arbitrary updates of a cohort cannot move a coordinate
beyond the values of the others. The mean has no such bound: one update moves it anywhere. The price
is memory for the whole cohort, K * d float32 values, since no coordinate's median can be streamed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from hofl.layout import Layout
from hofl.messages import RoundPlan

CHUNK = 2**16
"""Coordinates at a time: sorting then needs K * CHUNK float64 values whatever d is."""
SHARE = 5
"""The trimmed mean leaves out one value in five at each end, rounded up."""

Cut = Callable[[int], int]
"""K -> how many values of a coordinate are left out at each end; fewer than K / 2."""


def to_the_middle(cohort: int) -> int:
    """The median: all but the middle value, or the middle two.

    >>> [to_the_middle(k) for k in (1, 2, 3, 4, 7)]
    [0, 0, 1, 1, 3]
    """
    return (cohort - 1) // 2


def a_fifth(cohort: int) -> int:
    """The trimmed mean's cut, never more than the median's.

    >>> [a_fifth(k) for k in (1, 2, 3, 6, 10, 50)]
    [0, 0, 1, 2, 2, 10]
    """
    return min(-(-cohort // SHARE), to_the_middle(cohort))


class TrimmedMean:
    """Keeps every update [d] of the cohort; the order of ``add`` does not change a bit."""

    def __init__(self, layout: Layout, cut: Cut) -> None:
        self._size = layout.size
        self._cut = cut
        self._updates: list[Tensor] = []

    def add(self, delta: Tensor, plan: RoundPlan) -> None:
        """Take in one client's full update [d]."""
        self._updates.append(delta)

    def result(self) -> Tensor:
        """The aggregated update, float64 [d]; zero when nothing was added."""
        result = torch.zeros(self._size, dtype=torch.float64)
        cohort = len(self._updates)
        cut = self._cut(cohort)
        for start in range(0, self._size if cohort else 0, CHUNK):
            part = slice(start, start + CHUNK)
            values = torch.stack([delta[part] for delta in self._updates]).double()  # [K, n]
            result[part] = values.sort(dim=0).values[cut : cohort - cut].mean(dim=0)
        return result
