"""Aggregation: contributions go in one at a time, in cohort order, and one update comes out.

The means stream: one running sum for any size of the cohort. Each gives the bottom and the top of a
contribution a rank and a weight; within a block only the highest rank counts, and its updates are
averaged by weight. The paper's direct mean, Eq. (10), is rank 0 and weight 1 for every client.

The robust rules leave out the extremes of every coordinate before averaging. With a cut of c values
at each end, up to c arbitrary updates of a cohort cannot move a coordinate beyond the values of the
others; the mean has no such bound. The price is memory for the whole cohort, K * d float32 values,
since no coordinate's median can be streamed.

To add a rule, enter ``(layout, **options) -> Aggregation`` in ``AGGREGATIONS``.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hofl.core.errors import HoflError
from hofl.core.layout import SURROGATE, Layout
from hofl.rules import Part
from hofl.server.candidates import FromStart
from hofl.server.pooling import PooledScalars
from hofl.server.replay import replay
from hofl.server.state import Contribution

CHUNK = 2**16
"""Coordinates at a time: sorting then needs K * CHUNK float64 values for any d."""


class Aggregation(Protocol):
    """A cohort's contributions, combined into the update that is applied.

    One that needs n_i has a true attribute ``needs_examples``: private devices do not report how
    many examples they hold.
    """

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        ...

    def result(self) -> Tensor:
        """Return the aggregated update, float64 [d]; zero when nothing was added."""
        ...


class Weight(NamedTuple):
    """How much a client counts in one of its segments."""

    rank: int
    weight: float


SegmentWeights = Callable[[Contribution, Layout], tuple[Weight, Weight]]
"""(contribution, layout) -> weights of its bottom and of its top."""
_EQUAL = Weight(0, 1.0)


def mean(contribution: Contribution, layout: Layout) -> tuple[Weight, Weight]:
    """Weight every client equally in every block, as the paper does."""
    return _EQUAL, _EQUAL


def exact_first(contribution: Contribution, layout: Layout) -> tuple[Weight, Weight]:
    """Average a block over the clients that trained it exactly; without any, over all."""
    exact = contribution.plan.rule.traits.exact
    return Weight(int(exact), 1.0), Weight(1, 1.0)


def by_precision(contribution: Contribution, layout: Layout) -> tuple[Weight, Weight]:
    """Weight replayed blocks by 1 / (1 + (d_ZO + 1) / q), the estimator's excess variance."""
    plan = contribution.plan
    if not plan.rule.traits.sends_scalars:
        return _EQUAL, _EQUAL
    noise = (layout.cut(plan.boundary) + 1) / plan.rule.q if plan.rule.q else 0.0
    return Weight(0, 1.0 / (1.0 + noise)), _EQUAL


def by_examples(contribution: Contribution, layout: Layout) -> tuple[Weight, Weight]:
    """Weight by n_i / sum n, as FedAvg does: by the examples that a client holds."""
    weight = Weight(0, float(contribution.examples))
    return weight, weight


def unbiased(contribution: Contribution, layout: Layout) -> tuple[Weight, Weight]:
    """Weight by 1 / (N p_i): the expectation over cohorts is the mean over all N clients."""
    weight = Weight(0, 1.0 / (contribution.clients * contribution.share))
    return weight, weight


class RunningMean:
    """A weighted mean in O(d) memory; sums are float64, in the order of ``add``.

    Args:
        layout: the shared coordinates.
        weights: of a contribution's segments.
        by_count: divide by how many were added instead of by the sum of their weights.
        needs_examples: the weights need n_i.
    """

    def __init__(
        self,
        layout: Layout,
        weights: SegmentWeights,
        *,
        by_count: bool = False,
        needs_examples: bool = False,
    ) -> None:
        self.needs_examples = needs_examples
        self._weights, self._layout, self._by_count = weights, layout, by_count
        self._sum = torch.zeros(layout.size, dtype=torch.float64)
        parts = {block: layout.block_slice(block) for block in range(layout.num_blocks)}
        self._slices = {SURROGATE: slice(0, layout.cut(0)), **parts}
        self._ranks = dict.fromkeys(self._slices, -1)
        self._totals = dict.fromkeys(self._slices, 0.0)

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        bottom, top = self._weights(contribution, self._layout)
        for block, place in self._slices.items():
            if block == SURROGATE and contribution.plan.boundary == 0:
                continue  # without a bottom there is no surrogate to train
            rank, weight = bottom if block < contribution.plan.boundary else top
            part = self._sum[place]
            if rank > self._ranks[block]:
                part.zero_()
                self._ranks[block], self._totals[block] = rank, 0.0
            if rank == self._ranks[block]:
                part.add_(contribution.delta[place].double(), alpha=weight)
                self._totals[block] += 1.0 if self._by_count else weight

    def result(self) -> Tensor:
        """Return the aggregated update, float64 [d]; zero when nothing was added."""
        result = self._sum.clone()
        for block, total in self._totals.items():
            if total:
                result[self._slices[block]] /= total
        return result


def median_cut(cohort: int) -> int:
    """Return how many values the median leaves out at each end: all but the middle one or two.

    >>> [median_cut(k) for k in (1, 2, 3, 4, 7)]
    [0, 0, 1, 1, 3]
    """
    return (cohort - 1) // 2


class TrimmedMean:
    """A trimmed mean per coordinate; keeps every update [d]; the order of ``add`` has no effect.

    Args:
        layout: the shared coordinates.
        share: of a coordinate's values left out at each end, rounded up, but never more than the
            median leaves out; 0.5 is the median.
    """

    def __init__(self, layout: Layout, share: float = 0.2) -> None:
        if not 0 <= share <= 0.5:
            raise HoflError(f"the trimmed mean's share must lie in [0, 0.5], got {share}.")
        self._size, self._share = layout.size, share
        self._updates: list[Tensor] = []

    def cut(self, cohort: int) -> int:
        """Return how many values of a coordinate are left out at each end.

        >>> [TrimmedMean(Layout((), (), (), 0)).cut(k) for k in (1, 2, 3, 6, 10, 50)]
        [0, 0, 1, 2, 2, 10]
        """
        # Without the 1e-9 a product such as 0.2 * 15 = 3.0000000000000004 would round up to 4.
        return min(math.ceil(self._share * cohort - 1e-9), median_cut(cohort))

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        self._updates.append(contribution.delta)

    def result(self) -> Tensor:
        """Return the aggregated update, float64 [d]; zero when nothing was added."""
        result = torch.zeros(self._size, dtype=torch.float64)
        cohort = len(self._updates)
        cut = self.cut(cohort)
        for start in range(0, self._size if cohort else 0, CHUNK):
            part = slice(start, start + CHUNK)
            values = torch.stack([delta[part] for delta in self._updates]).double()  # [K, n]
            result[part] = values.sort(dim=0).values[cut : cohort - cut].mean(dim=0)
        return result


class MeanOfScalars:
    """Average scalars first, then replay once: DeComFL's own step, for directions that are shared.

    Clients with directions of their own are replayed one by one; differences are averaged as they
    are. Where the whole round follows from mean scalars, :meth:`replayable` returns them.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._scalars, self._count = layout, PooledScalars(), 0
        self._dense = torch.zeros(layout.size, dtype=torch.float64)
        self._differs = False

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        self._scalars.add(contribution)
        replayed = contribution.upload.scalars.shape[1] > 0
        cut = self._layout.cut(contribution.plan.boundary) if replayed else 0
        self._dense[cut:] += contribution.delta[cut:]
        self._differs |= cut < self._layout.size
        self._count += 1

    def result(self) -> Tensor:
        """Return the aggregated update, float64 [d]; zero when nothing was added."""
        result = self._dense / max(self._count, 1)
        for pool in self._scalars:
            w_e = replay(pool.plan, pool.mean(), self._layout).double()
            share = pool.count / self._count  # 1.0 for a single pool: nothing is rounded
            result[: len(w_e)] += share * (w_e - pool.plan.w[: len(w_e)].double())
        return result

    def replayable(self) -> list[list[float]] | None:
        """Return the mean scalars [E, q] if they alone make the round's update, else None."""
        if len(self._scalars) != 1 or self._differs:
            return None
        (pool,) = self._scalars
        means: list[list[float]] = pool.mean().tolist()
        return means


AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {
    "mean": lambda layout: RunningMean(layout, mean),
    "by-examples": lambda layout: RunningMean(layout, by_examples, needs_examples=True),
    "unbiased": lambda layout: RunningMean(layout, unbiased, by_count=True),
    "exact-first": lambda layout: RunningMean(layout, exact_first),
    "by-precision": lambda layout: RunningMean(layout, by_precision),
    "mean-of-scalars": MeanOfScalars,
    "from-start": FromStart,
    "median": lambda layout: TrimmedMean(layout, share=0.5),
    "trimmed-mean": TrimmedMean,
}


def aggregation_of(part: Part, layout: Layout) -> Aggregation:
    """Make the aggregation that a method names, empty."""
    if part.name not in AGGREGATIONS:
        known = ", ".join(AGGREGATIONS)
        raise HoflError(f"unknown aggregation {part.name!r}: choose one of {known}.")
    made: Aggregation = part.made_by(AGGREGATIONS[part.name], layout)
    return made
