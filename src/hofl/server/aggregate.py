"""Aggregation: rebuilt updates go in one at a time, in cohort order, and one update comes out.

The means stream: one running sum, whatever the cohort's size. Their rule gives each block of each
update a rank and a weight; within a block only the highest rank seen counts, and its updates are
averaged by weight. The paper's direct mean, Eq. (10), is rank 0 and weight 1 for everyone. Robust
rules (``hofl.server.robust``) keep the cohort's updates.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hofl.layout import Layout
from hofl.messages import RoundPlan
from hofl.server.robust import TrimmedMean, a_fifth, to_the_middle


class Aggregation(Protocol):
    """Takes in a cohort's updates, gives out the one that is applied."""

    def add(self, delta: Tensor, plan: RoundPlan) -> None:
        """Take in one client's full update [d]."""
        ...

    def result(self) -> Tensor:
        """The aggregated update, float64 [d]; zero when nothing was added."""
        ...


BlockWeights = Callable[[RoundPlan, Layout], list[tuple[int, float]]]
"""(plan, layout) -> (rank, weight) of each block of that client's update."""


def mean(plan: RoundPlan, layout: Layout) -> list[tuple[int, float]]:
    """The paper: every client counts the same in every block."""
    return [(0, 1.0)] * layout.num_blocks


def exact_first(plan: RoundPlan, layout: Layout) -> list[tuple[int, float]]:
    """Average a block over those who trained it exactly; over everyone where nobody did."""
    bottom_rank = 1 if plan.rule.bottom == "recompute" else 0
    return [
        (bottom_rank if block < plan.boundary else 1, 1.0) for block in range(layout.num_blocks)
    ]


def by_precision(plan: RoundPlan, layout: Layout) -> list[tuple[int, float]]:
    """Weight zeroth-order blocks by 1 / (1 + (d_ZO + 1) / q), the estimator's excess variance."""
    noise = (layout.cut(plan.boundary) + 1) / plan.rule.q if plan.rule.q else 0.0
    bottom_weight = 1.0 / (1.0 + noise) if plan.rule.bottom == "zeroth-order" else 1.0
    return [
        (0, bottom_weight if block < plan.boundary else 1.0) for block in range(layout.num_blocks)
    ]


class RunningMean:
    """Adds updates one at a time; memory is O(d). Sums are float64, in the order of ``add``."""

    def __init__(self, layout: Layout, weights: BlockWeights) -> None:
        self._layout = layout
        self._weights = weights
        self._sum = torch.zeros(layout.size, dtype=torch.float64)
        self._ranks = [-1] * layout.num_blocks
        self._totals = [0.0] * layout.num_blocks

    def add(self, delta: Tensor, plan: RoundPlan) -> None:
        """Take in one client's full update [d]."""
        for block, (rank, weight) in enumerate(self._weights(plan, self._layout)):
            part = self._sum[self._layout.block_slice(block)]
            if rank > self._ranks[block]:
                part.zero_()
                self._ranks[block], self._totals[block] = rank, 0.0
            if rank == self._ranks[block]:
                part.add_(delta[self._layout.block_slice(block)].double(), alpha=weight)
                self._totals[block] += weight

    def result(self) -> Tensor:
        """The aggregated update, float64 [d]; zero when nothing was added."""
        result = self._sum.clone()
        for block, total in enumerate(self._totals):
            if total:
                result[self._layout.block_slice(block)] /= total
        return result


AGGREGATIONS: dict[str, Callable[[Layout], Aggregation]] = {
    "mean": lambda layout: RunningMean(layout, mean),
    "exact-first": lambda layout: RunningMean(layout, exact_first),
    "by-precision": lambda layout: RunningMean(layout, by_precision),
    "median": lambda layout: TrimmedMean(layout, to_the_middle),
    "trimmed-mean": lambda layout: TrimmedMean(layout, a_fifth),
}
