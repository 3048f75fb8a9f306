"""A device that plans for itself: its boundary from its memory, found anew when that changes."""

from collections.abc import Callable

import torch

from hofl.planning.available import available_bytes, held_bytes
from hofl.planning.fleet import Device
from hofl.planning.plan import MemoryPlan
from hofl.planning.sizes import AUTO, parse_bytes
from hofl.planning.workload import Cost

GROWTH = 1.25
"""A choice that still fits is kept until the budget has grown by this factor: free memory changes
from second to second, and every new boundary is a plan that the server has to make again."""


def own_budget(text: str, device: torch.device | None = None) -> Callable[[], int]:
    """Bytes that the device may use: a fixed amount, or with ``auto`` what is free now.

    What the process already holds, such as the loaded model, belongs to it.
    """
    if text == AUTO:
        return lambda: available_bytes(device) + held_bytes(device)
    amount = parse_bytes(text)
    return lambda: amount


class OwnDevice:
    """The device's choice within its budget.

    Args:
        memory: costs of the run's step at every boundary.
        strategy: ``paper`` or ``best``.
        budget: bytes that may be used now.
    """

    def __init__(self, memory: MemoryPlan, strategy: str, budget: Callable[[], int]) -> None:
        self._memory, self._strategy, self._budget = memory, strategy, budget
        self._chosen: Cost | None = None
        self._planned_for = 0

    def __call__(self) -> Device:
        """As of now; an error says what would fit when nothing does."""
        budget, chosen = self._budget(), self._chosen
        grown = budget > GROWTH * self._planned_for
        if chosen is None or chosen.peak_bytes > budget or grown:
            chosen = self._chosen = self._memory.fitting(budget, self._strategy)
            self._planned_for = budget
        return Device(chosen.boundary, chosen.execution)
