"""From a budget in bytes to a way of taking part."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from hofl.errors import HoflError
from hofl.planning.sizes import show_bytes
from hofl.planning.workload import Cost

Order = Callable[[Cost], Any]

STRATEGIES: dict[str, tuple[bool, Order]] = {
    # The paper: the largest first-order segment of the plain step.
    "paper": (False, lambda cost: cost.boundary),
    # All options: the largest first-order segment, then the least compute, then the fewest bytes;
    # among equals, weights in memory before weights on disk, and larger micro-batches.
    "best": (
        True,
        lambda cost: (
            cost.boundary,
            round(cost.relative_compute, 9),
            cost.uplink_bytes,
            cost.execution.stream_bottom,
            -(cost.execution.micro_batch or math.inf),
            cost.peak_bytes,
        ),
    ),
}
"""Whether the options besides the plain plans are weighed, and what is best (least) of those that
fit."""


def choose(
    plain: Iterable[Cost], options: Iterable[Cost], budget: int, strategy: str = "paper"
) -> Cost | None:
    """The best plan that fits the budget, or None."""
    weighs_all, order = _strategy(strategy)
    plans = [*plain, *(options if weighs_all else ())]
    return min((cost for cost in plans if cost.peak_bytes <= budget), key=order, default=None)


def check_strategy(name: str) -> None:
    """Say early what is wrong with a strategy's name."""
    _strategy(name)


def nothing_fits(plans: Iterable[Cost], budget: int, strategy: str) -> str:
    """What to tell somebody whose budget is too small."""
    least = min(plans, key=lambda cost: cost.peak_bytes)
    way = ", ".join(filter(None, [f"boundary {least.boundary}", least.execution.describe()]))
    weighs_all, _ = _strategy(strategy)
    other = "" if weighs_all else ", or stream the bottom (strategy best weighs that and more)"
    return (
        f"nothing fits {show_bytes(budget)}: the smallest needs {show_bytes(least.peak_bytes)} "
        f"({way}). Lower the batch size or the length{other}."
    )


def _strategy(name: str) -> tuple[bool, Order]:
    if name not in STRATEGIES:
        raise HoflError(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]
