"""The clients that can be drawn in a round: all of a simulated fleet, or those who are there."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hofl.methods import BoundaryRule
from hofl.sampling.policies import Policy
from hofl.sampling.water_filling import WaterFilling


@dataclass(frozen=True)
class Present:
    """Clients and where the method cuts the model on each.

    Args:
        clients: their numbers, ascending, int64 [n].
        boundaries: b_i of each, int64 [n].
    """

    clients: np.ndarray
    boundaries: np.ndarray

    @classmethod
    def of(cls, own: Mapping[int, int], rule: BoundaryRule, num_blocks: int) -> "Present":
        """Present clients with their own boundaries, cut as the method wants it."""
        clients = sorted(own)
        reported = [own[client] for client in clients]
        cuts = [rule(b, reported, num_blocks) for b in reported]
        return cls(np.array(clients, dtype=np.int64), np.array(cuts, dtype=np.int64))

    def without(self, resting: Collection[int], least: int = 1) -> "Present":
        """Those who do not rest; everyone when fewer than ``least`` would be left."""
        kept = ~np.isin(self.clients, list(resting))
        if not resting or kept.sum() < least:
            return self
        return Present(self.clients[kept], self.boundaries[kept])

    def boundary(self, client: int) -> int:
        """b_i."""
        return int(self.boundaries[np.searchsorted(self.clients, client)])


def policy_for(policy: Policy, present: Present) -> Policy:
    """The policy for these clients; only costs given one by one belong to certain clients.

    Whoever has joined later than the costs were written counts with their mean.
    """
    if not isinstance(policy, WaterFilling) or policy.costs is None:
        return policy
    given = np.array(policy.costs)
    costs = np.full(max(len(given), int(present.clients.max()) + 1), given.mean())
    costs[: len(given)] = given
    return replace(policy, costs=tuple(costs[present.clients].tolist()))
