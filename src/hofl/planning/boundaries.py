"""Costs at all boundaries 0..L from a few traces.

When all blocks are alike, each phase of a step (the bottom's pass, the top's, the update) has a
peak that is affine in the boundary, so the peak of the step is a maximum of affine functions:
convex. A convex function that meets a straight line at three points lies on it between them. So the
two outer lines are followed to where they cross; if the costs there lie on them, no other can lie
above. Otherwise the search goes on in both halves.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hofl.local.execution import PLAIN, Execution
from hofl.models.split import SplitModel
from hofl.planning.hollow import META, without_data
from hofl.planning.trace import trace
from hofl.planning.uplink import uplink_bytes
from hofl.planning.workload import Cost, Workload

_CLOSE = 1e-6  # of the peak


def all_boundaries(
    model: SplitModel, workload: Workload, execution: Execution = PLAIN
) -> list[Cost]:
    """The cost at every boundary, in order."""
    costs: dict[int, Cost] = {}

    def at(boundary: int) -> Cost:
        if boundary not in costs:
            costs[boundary] = trace(model, workload, boundary, execution)
        return costs[boundary]

    def fill(start: int, stop: int) -> None:
        for boundary in range(start + 1, stop):
            costs[boundary] = _between(at(start), at(stop), boundary, model, workload)

    # Segments of several blocks leave remainders of different sizes: no straight line.
    if execution.checkpoint <= 1 and blocks_alike(model, workload.seq_len):
        # At 0 and L one of the segments is missing, and the step is another one.
        _follow(at, fill, 1, model.num_blocks - 1)
    return [at(boundary) for boundary in range(model.num_blocks + 1)]


def _follow(
    at: Callable[[int], Cost], fill: Callable[[int, int], None], low: int, high: int
) -> None:
    """Fill what lies on straight lines between low and high."""
    if high - low < 3:
        return
    left = at(low + 1).peak_bytes - at(low).peak_bytes
    right = at(high).peak_bytes - at(high - 1).peak_bytes
    middle = (low + high) // 2
    if left != right:
        fall = at(low).peak_bytes - at(high).peak_bytes
        crossing = low + (fall + right * (high - low)) / (right - left)
        middle = int(min(max(crossing, low + 1), high - 2))
    for start, stop, inner in ((low, middle, low + 1), (middle + 1, high, high - 1)):
        if _on_line(at(start), at(inner), at(stop)):
            fill(start, stop)
        else:
            _follow(at, fill, start, stop)


def _on_line(start: Cost, inner: Cost, stop: Cost) -> bool:
    share = (inner.boundary - start.boundary) / max(stop.boundary - start.boundary, 1)

    def straight(a: float, b: float, c: float) -> bool:
        return abs(b - (a + share * (c - a))) <= _CLOSE * b

    return straight(start.peak_bytes, inner.peak_bytes, stop.peak_bytes) and straight(
        start.relative_compute, inner.relative_compute, stop.relative_compute
    )


def _between(start: Cost, stop: Cost, boundary: int, model: SplitModel, workload: Workload) -> Cost:
    """The cost at a boundary on the line from one traced cost to another."""
    share = (boundary - start.boundary) / (stop.boundary - start.boundary)

    def at_share(a: float, b: float) -> float:
        return a + share * (b - a)

    cut = model.layout.cut(boundary)
    return replace(
        start,
        boundary=boundary,
        peak_bytes=round(at_share(start.peak_bytes, stop.peak_bytes)),
        items={k: round(at_share(v, stop.items[k])) for k, v in start.items.items()},
        zo_params=cut,
        fo_params=model.layout.size - cut,
        uplink_bytes=uplink_bytes(model.layout, workload.rule, boundary),
        relative_compute=at_share(start.relative_compute, stop.relative_compute),
    )


def blocks_alike(model: SplitModel, seq_len: int) -> bool:
    """Whether all blocks have the same weights and get the same masks and tables."""
    with without_data():
        inputs = model.inputs(torch.zeros(1, seq_len, dtype=torch.long, device=META))
    kinds = set()
    for block, call in zip(model.blocks, inputs.calls, strict=True):
        weights = [(name, p.shape, p.dtype) for name, p in block.named_parameters()]
        kinds.add(repr((weights, tree_map(_shape, call))))
    return len(kinds) == 1


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
