"""FedKSeed's server: one accumulated scalar per candidate direction; w follows from them and w_0.

With A_c the sum, over all rounds, of the cohort's mean scalars along candidate z_c,

    w_t = w_0 - eta sum_c A_c z_c,

which is what SGD without weight decay reaches from w_0, rounding aside. The server rebuilds its w
by this formula in every round; whoever has w_0 then needs A and nothing else to have the same bits.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hofl.core.directions import TOTALS, Candidates, checked_pool
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.messages import RoundPlan
from hofl.server.state import Contribution

LARGEST = 1e38
"""Cap of A: wild uploads must not make plans that are refused for what is not finite."""


class CandidateSums:
    """A cohort's scalars, summed by the candidates that they were measured along.

    Args:
        layout: the shared coordinates.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sums: dict[int, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, contribution: Contribution) -> None:
        """Add one client's scalars [E, q] / q; an upload without any adds nothing."""
        scalars = contribution.upload.scalars
        directions = contribution.plan.directions(self._layout)
        if not scalars.numel() or not isinstance(directions, Candidates):
            return
        for e, row in enumerate(scalars.double().tolist()):
            for j, scalar in enumerate(row):
                chosen = directions.chosen(e, j)
                self._sums[chosen] = self._sums.get(chosen, 0.0) + scalar / len(row)
        self._count += 1

    def added_to(self, totals: Tensor) -> Tensor:
        """Return the next A, float32 [pool]: this one and the mean over the clients."""
        result = totals.double()
        for number, total in self._sums.items():
            result[number] += total / self._count
        return result.clamp(-LARGEST, LARGEST).float()


class Totals:
    """Keeper of A, at first zero.

    Args:
        layout: the shared coordinates.
        pool: number of candidates.
        seed: of the candidates; the directions take it.
        shared: of the directions; the keys say the same.
    """

    def __init__(
        self, layout: Layout, pool: int = 4096, seed: int = 0, shared: bool = False
    ) -> None:
        self._pool, self._sums = checked_pool(pool), CandidateSums(layout)

    def start(self) -> dict[str, Tensor]:
        """Return A = 0."""
        return {TOTALS: torch.zeros(self._pool)}

    def add(self, contribution: Contribution) -> None:
        """Take in one client's scalars."""
        self._sums.add(contribution)

    def result(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the next round's A [pool]."""
        return {TOTALS: self._sums.added_to(vectors[TOTALS])}


def rebuilt(plan: RoundPlan, totals: Tensor, start: Tensor, layout: Layout) -> Tensor:
    """Return w_0 - eta sum_c A_c z_c, float32 [d].

    Products of float32 are exact in float64, and the order of the sum is protocol: both sides end
    in the same bits.
    """
    directions = plan.directions(layout)
    if not isinstance(directions, Candidates):
        raise HoflError(f"w cannot be made from {plan.rule.directions.name!r} directions: send it.")
    moved = np.zeros(layout.size)
    numbers = np.flatnonzero(totals.numpy())
    for coordinate in layout.coordinates:
        target = moved[coordinate.start : coordinate.stop]
        for number in numbers:
            values = directions.candidate(int(number), coordinate).astype(np.float64)
            np.add(target, np.multiply(values, float(totals[number]), out=values), out=target)
    return (start.double() - plan.rule.optimizer.lr * torch.from_numpy(moved)).float()


class FromStart:
    """w_{t+1} from w_0 and the next A; without candidates among the directions, the mean, Eq. (10).

    ``from_start`` says so to those who check methods and shorten plans.
    """

    from_start = True

    def __init__(self, layout: Layout) -> None:
        self._layout, self._sums = layout, CandidateSums(layout)
        self._others = torch.zeros(layout.size, dtype=torch.float64)
        self._count = 0
        self._last: Contribution | None = None

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        before = len(self._sums)
        self._sums.add(contribution)
        if len(self._sums) > before:
            self._last = contribution
        self._others += contribution.delta
        self._count += 1

    def result(self) -> Tensor:
        """Return the update to w_{t+1}, float64 [d]; zero when nothing was added."""
        if self._last is None:
            return self._others / max(self._count, 1)
        plan, start = self._last.plan, self._last.start
        assert start is not None, "the contributions of a run carry its w_0"
        totals = self._sums.added_to(plan.vectors[TOTALS])
        return rebuilt(plan, totals, start, self._layout).double() - plan.w.double()
