"""The clients that can be drawn in a round: a simulated fleet, or the devices that joined."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hofl.core.layout import Layout
from hofl.engines.base import DeviceOffer
from hofl.methods import Method
from hofl.rules import LocalRule
from hofl.variants import changed


@dataclass(frozen=True)
class Present:
    """The clients present, where the method cuts the model on each, and the rule that each runs.

    Args:
        clients: their numbers, ascending, int64 [n].
        boundaries: b_i of each, int64 [n].
        examples: n_i of each, int64 [n]; 1 from a private device.
        rules: the local rule of each, [n].
    """

    clients: np.ndarray
    boundaries: np.ndarray
    examples: np.ndarray
    rules: tuple[LocalRule, ...]

    @classmethod
    def of(cls, devices: Mapping[int, DeviceOffer], method: Method, num_blocks: int) -> "Present":
        """Cut the model on each device as the method does; a device's own rule stays its own."""
        clients = sorted(devices)
        allowed = np.array([devices[client].boundary for client in clients], dtype=np.int64)
        examples = np.array([devices[client].examples for client in clients], dtype=np.int64)
        rules = tuple(
            changed(method.local, offer.rule) if offer.rule else method.local
            for offer in (devices[client] for client in clients)
        )
        boundaries = method.boundary(allowed, num_blocks)
        return cls(np.array(clients, dtype=np.int64), boundaries, examples, rules)

    def without(self, resting: Collection[int], least: int = 1) -> "Present":
        """Leave out resting clients, unless fewer than ``least`` would remain."""
        kept = ~np.isin(self.clients, list(resting))
        if not resting or kept.sum() < least:
            return self
        rules = tuple(rule for rule, stays in zip(self.rules, kept, strict=True) if stays)
        return Present(self.clients[kept], self.boundaries[kept], self.examples[kept], rules)

    def inexact(self, layout: Layout) -> np.ndarray:
        """Return how many parameters each client does not train exactly, d_ZO or frozen, [n]."""
        cuts = np.array([layout.cut(b) for b in range(layout.num_blocks + 1)])
        exact = np.array([rule.traits.exact for rule in self.rules], dtype=bool)
        return np.where(exact, 0, cuts[self.boundaries])

    def place(self, client: int) -> int:
        """Return a client's index in the vectors."""
        return int(np.searchsorted(self.clients, client))

    def boundary(self, client: int) -> int:
        """Return b_i."""
        return int(self.boundaries[self.place(client)])

    def rule(self, client: int) -> LocalRule:
        """Return the local rule of a client."""
        return self.rules[self.place(client)]
