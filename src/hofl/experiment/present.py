"""The clients that can be drawn in a round: a simulated fleet, or the devices that joined."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hofl.engines.base import DeviceOffer
from hofl.methods import BoundaryRule


@dataclass(frozen=True)
class Present:
    """The clients present, and where the method cuts the model on each.

    Args:
        clients: their numbers, ascending, int64 [n].
        boundaries: b_i of each, int64 [n].
        examples: n_i of each, int64 [n]; 1 from a private device.
    """

    clients: np.ndarray
    boundaries: np.ndarray
    examples: np.ndarray

    @classmethod
    def of(
        cls, devices: Mapping[int, DeviceOffer], rule: BoundaryRule, num_blocks: int
    ) -> "Present":
        """Cut the model on each device as the method does."""
        clients = sorted(devices)
        allowed = np.array([devices[client].boundary for client in clients], dtype=np.int64)
        examples = np.array([devices[client].examples for client in clients], dtype=np.int64)
        return cls(np.array(clients, dtype=np.int64), rule(allowed, num_blocks), examples)

    def without(self, resting: Collection[int], least: int = 1) -> "Present":
        """Leave out resting clients, unless fewer than ``least`` would remain."""
        kept = ~np.isin(self.clients, list(resting))
        if not resting or kept.sum() < least:
            return self
        return Present(self.clients[kept], self.boundaries[kept], self.examples[kept])

    def place(self, client: int) -> int:
        """Return a client's index in the vectors."""
        return int(np.searchsorted(self.clients, client))

    def boundary(self, client: int) -> int:
        """Return b_i."""
        return int(self.boundaries[self.place(client)])
