"""From a budget in bytes to a way of taking part."""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from hofl.errors import HoflError
from hofl.planning.workload import Cost

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**k for k, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**k for k, letter in enumerate("kmgt", start=1)}


def parse_bytes(text: str | int) -> int:
    """A number of bytes: 12GiB, 800 MiB, 2GB (1000s), 4096."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if found is None or found[2].lower() not in _UNITS or not Fraction(found[1]):
        raise HoflError(
            f"cannot read {text!r} as an amount of memory: write it as 12GiB, 800MiB or 4096."
        )
    return int(Fraction(found[1]) * _UNITS[found[2].lower()])


def show_bytes(num_bytes: float) -> str:
    """A byte count for people, fine enough to compare plans by: 9.17 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


Order = Callable[[Cost], Any]

STRATEGIES: dict[str, tuple[bool, Order]] = {
    # The paper: the largest first-order segment of the plain step.
    "paper": (False, lambda cost: cost.boundary),
    # All options: the largest first-order segment, then the least compute, then the fewest bytes.
    "best": (
        True,
        lambda cost: (cost.boundary, cost.relative_compute, cost.uplink_bytes, cost.peak_bytes),
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


def nothing_fits(plans: Iterable[Cost], budget: int) -> str:
    """What to tell somebody whose budget is too small."""
    least = min(plans, key=lambda cost: cost.peak_bytes)
    return (
        f"nothing fits {show_bytes(budget)}: the smallest plan, at boundary {least.boundary}, needs "
        f"{show_bytes(least.peak_bytes)}. Lower the batch size or the length, or stream the bottom."
    )


def _strategy(name: str) -> tuple[bool, Order]:
    if name not in STRATEGIES:
        raise HoflError(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]
