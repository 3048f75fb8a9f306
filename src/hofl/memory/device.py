"""A device as it is now: its free memory, the boundary that it chooses by it, and its speeds.

Speeds are measured by a probe of computing and one of reading, half a second each.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hofl.core.errors import HoflError
from hofl.core.process import (
    address_space_limit,
    footprint,
    footprint_before_models,
    memory_left,
)
from hofl.core.sizes import AUTO, parse_bytes
from hofl.local.site import PLAIN, Execution
from hofl.memory.capability import NO_HEADROOM, Headroom
from hofl.memory.workload import Cost
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from hofl.variants import Changes, changes_of

FREE = "free"
"""In a fleet's budgets, the same as ``auto``."""
GROWTH = 1.25
"""A choice that still fits is kept until the budget has grown by this factor: free memory changes
from second to second, and the server has to plan again for every new boundary."""
SIZE = 1024
"""Rows and columns of the matrices that are multiplied."""
PROBE_SECONDS = 0.5
"""Time of each probe."""
log = logging.getLogger("hofl.device")


@dataclass(frozen=True)
class Device:
    """The boundary of a device, how it runs a step, and what its rule changes in the run's."""

    boundary: int
    execution: Execution = PLAIN
    rule: Changes = field(default_factory=dict)


class DevicePlanner:
    """Choose what a device runs within its budget, and again when the budget changes.

    Args:
        choose: returns the plan of a device of so many bytes, and whether it can run backward.
        rule: the run's.
        budget: returns the bytes that may be used now.
        headroom: that a plan leaves; one that no longer does is replaced.
    """

    def __init__(
        self,
        choose: Callable[[int, bool], Cost],
        rule: LocalRule,
        budget: Callable[[], int],
        headroom: Headroom = NO_HEADROOM,
    ) -> None:
        self._choose, self._rule, self._budget = choose, rule, budget
        self._headroom = headroom
        self._chosen: Cost | None = None
        self._planned_for = 0
        self._backward = True

    def cannot_run_backward(self, reason: str) -> None:
        """Plan without backward passes from now on."""
        log.warning("%s: planning without backward passes from now on", reason)
        self._backward, self._chosen = False, None

    def __call__(self) -> Device:
        """Return the choice as of now.

        Raises:
            HoflError: nothing fits; it names the smallest plan.
        """
        budget, chosen = self._budget(), self._chosen
        grown = budget > GROWTH * self._planned_for
        if chosen is None or self._needed(chosen) > budget or grown:
            chosen = self._chosen = self._planned(budget)
            self._planned_for = budget
        return Device(chosen.boundary, chosen.execution, changes_of(self._rule, chosen.rule))

    def _planned(self, budget: int) -> Cost:
        """Return a new plan; where nothing fits, the one so far if its peak alone still does."""
        try:
            return self._choose(budget, self._backward)
        except HoflError:
            if self._chosen is None or self._chosen.peak_bytes > budget:
                raise
            return self._chosen

    def _needed(self, cost: Cost) -> int:
        return cost.peak_bytes + self._headroom.of(cost)


def budget_reader(text: str, device: torch.device | None = None) -> Callable[[], int]:
    """Return how to read a budget: a fixed amount, or with ``auto`` what is free now."""
    if text.strip() in (AUTO, FREE):
        return partial(usable_bytes, device)
    amount = parse_bytes(text)
    return lambda: amount


def budget_bytes(text: str, device: torch.device | None = None) -> int:
    """Return a budget in bytes: an amount such as 4GiB, or what is free now."""
    return budget_reader(text, device)()


def usable_bytes(device: torch.device | None = None) -> int:
    """Return the bytes that a model and its steps may take in this process.

    A plan's peak includes the weights, so what they already take must count here, once. On a GPU
    that is its free memory plus what this process has reserved. Elsewhere it is the least of what
    the system, the control groups and the process's own limit allow, where

    - pages that a file backs, such as mapped weights, are reclaimable: the system's figure has
      them, and a control group's gets them added;
    - private memory taken since the first model was loaded (converted weights, and what the
      allocator keeps of earlier steps) is added;
    - the interpreter and its libraries are not: a step cannot have their memory.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    before = footprint_before_models()
    held = max(footprint().anonymous - before.anonymous, 0)
    limits = [left + held for left in memory_left()]
    most = address_space_limit()
    if most is not None and before.address_space:
        limits.append(most - before.address_space)
    if not limits:
        raise HoflError("free memory cannot be read on this system: give an amount such as 4GiB.")
    return max(min(limits), 1)


def measured(limits: Mapping[str, Any], model: SplitModel) -> Mapping[str, Any]:
    """Return the limits with the speeds that a limit of time needs, measured where not given."""
    if limits.get("seconds") is None:
        return limits
    known = dict(limits)
    if known.get("gflops") is None:
        known["gflops"] = _flops(model.device, model.compute_dtype) / 1e9
    if known.get("read_speed") is None and model.on_disk:
        known["read_speed"] = f"{_read_speed(list(model.on_disk.values())):.0f}"
    return known


def _flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return floating-point operations per second, from products of the size of a block's."""
    a, b = (torch.ones(SIZE, SIZE, device=device, dtype=dtype) for _ in range(2))

    def product() -> float:
        (a @ b)[0, 0].item()  # wait for the device
        return 2.0 * SIZE**3

    return _rate([product])


def _read_speed(readers: Sequence[Callable[[], Tensor]]) -> float:
    """Return bytes per second of reading some of a model's tensors, cached files as they are."""
    return _rate([lambda read=read: float(read().nbytes) for read in readers])  # type: ignore[misc]


def _rate(jobs: Sequence[Callable[[], float]]) -> float:
    """Return amount per second of jobs in turn; the first run warms up and is not counted."""
    jobs[0]()
    done, began, turn = 0.0, time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < PROBE_SECONDS:
        done += jobs[turn % len(jobs)]()
        turn += 1
    return max(done / passed, 1.0)
