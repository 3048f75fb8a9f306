"""A second's probe of a device: how fast it computes, and how fast it reads its model's files."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SIZE = 1024
"""Rows and columns of the matrices that are multiplied."""
PROBE_SECONDS = 0.5
"""Time of each probe."""


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return floating-point operations per second, from products of the size of a block's."""
    a, b = (torch.ones(SIZE, SIZE, device=device, dtype=dtype) for _ in range(2))

    def product() -> float:
        (a @ b)[0, 0].item()  # wait for the device
        return 2.0 * SIZE**3

    return _rate([product])


def measured_read_speed(readers: Sequence[Callable[[], Tensor]]) -> float:
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
