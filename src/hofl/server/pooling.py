"""Scalars of clients that probed the same directions can be averaged before anything is rebuilt.

With a common key, the mean of K gradient estimates is the estimate of the K mean scalars: one
replay in place of K, and a client that was away can repeat the step from the mean scalars alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.messages import RoundPlan
from hofl.server.state import Contribution


@dataclass
class KeyPool:
    """The clients of a cohort with one key of directions and one boundary.

    Args:
        plan: of the first of them; key, boundary, rule and w are common to all.
        total: sum of their scalars, float64 [E, q].
        count: how many they are.
    """

    plan: RoundPlan
    total: Tensor = field(repr=False)
    count: int = 0

    def mean(self) -> Tensor:
        """Return the mean scalars, float32 [E, q]."""
        return (self.total / self.count).float()


class PooledScalars:
    """A cohort's scalars, pooled by directions and boundary, in the order of ``add``."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, ...], KeyPool] = {}

    def __iter__(self) -> Iterator[KeyPool]:
        return iter(self._pools.values())

    def __len__(self) -> int:
        return len(self._pools)

    def add(self, contribution: Contribution) -> None:
        """Add one client's scalars; an upload without any adds nothing."""
        plan, scalars = contribution.plan, contribution.upload.scalars
        if not scalars.shape[1]:
            return
        pool = self._pools.setdefault(
            (*plan.key, plan.boundary),
            KeyPool(plan, torch.zeros_like(scalars, dtype=torch.float64)),
        )
        pool.total += scalars
        pool.count += 1
