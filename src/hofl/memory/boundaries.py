"""Costs at all boundaries 0..L from a few traces.

When all blocks are alike, each phase of a step (the bottom's pass, the top's, the update) has a
peak that is affine in the boundary, so the peak of the step is a maximum of affine functions:
convex. A convex function that meets a straight line at three points lies on it between them. So the
two outer lines are followed to where they cross; if the costs there lie on them, no other line can
lie above. Otherwise the search continues in both parts. Outer lines that do not cross between their
ends do not belong to a convex function (a top of one or two blocks can be cheaper than its line):
then the middle divides, so that the search ends after logarithmically many steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from hofl.local.site import PLAIN, Execution
from hofl.memory.hollow import without_data
from hofl.memory.trace import trace, what_is_trained
from hofl.memory.workload import Cost, Workload
from hofl.models.attention import PackedRow
from hofl.models.split import SplitModel

_CLOSE = 1e-6  # of the peak


def all_boundaries(
    model: SplitModel, workload: Workload, execution: Execution = PLAIN
) -> list[Cost]:
    """Return the cost at every boundary, in order."""
    costs: dict[int, Cost] = {}

    def at(boundary: int) -> Cost:
        if boundary not in costs:
            costs[boundary] = trace(model, workload, boundary, execution)
        return costs[boundary]

    def fill(start: int, stop: int) -> None:
        for boundary in range(start + 1, stop):
            costs[boundary] = _between(at(start), at(stop), boundary, model, workload)

    # Segments of several blocks leave remainders of different sizes: not a straight line.
    if execution.checkpoint <= 1 and blocks_alike(model, workload):
        # At 0 and L one of the segments is missing, which makes a different step.
        _follow(at, fill, 1, model.num_blocks - 1)
    return [at(boundary) for boundary in range(model.num_blocks + 1)]


def _follow(
    at: Callable[[int], Cost], fill: Callable[[int, int], None], low: int, high: int
) -> None:
    """Fill in what lies on straight lines between low and high."""
    if high - low < 3:
        return
    left = at(low + 1).peak_bytes - at(low).peak_bytes
    right = at(high).peak_bytes - at(high - 1).peak_bytes
    middle = (low + high) // 2
    if left != right:
        fall = at(low).peak_bytes - at(high).peak_bytes
        crossing = low + (fall + right * (high - low)) / (right - left)
        if low < crossing < high:
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
    """Interpolate the cost at a boundary between two traced costs."""
    share = (boundary - start.boundary) / (stop.boundary - start.boundary)

    def at_share(a: float, b: float) -> float:
        return a + share * (b - a)

    return replace(
        start,
        boundary=boundary,
        peak_bytes=round(at_share(start.peak_bytes, stop.peak_bytes)),
        items={k: round(at_share(v, stop.items[k])) for k, v in start.items.items()},
        **what_is_trained(model.layout, workload.rule, boundary),
        relative_compute=at_share(start.relative_compute, stop.relative_compute),
        read_bytes=round(at_share(start.read_bytes, stop.read_bytes)),
    )


def blocks_alike(model: SplitModel, workload: Workload) -> bool:
    """Tell whether all blocks have the same weights and receive the same masks and tables."""
    with without_data():
        inputs = model.inputs(workload.batch().texts)
    kinds = set()
    for block, call in zip(model.blocks, inputs.calls, strict=True):
        weights = [(name, p.shape, p.dtype) for name, p in block.named_parameters()]
        kinds.add(repr((weights, tree_map(_shape, call))))
    return len(kinds) == 1


def _shape(value: Any) -> Any:
    if isinstance(value, PackedRow):
        return value
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
