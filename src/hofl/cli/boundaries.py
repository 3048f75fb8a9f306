"""The long tables and the figure of ``hofl plan``: every boundary, plain and with options."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.core.sizes import show_bytes
from hofl.reporting.figures import Line, Panel

if TYPE_CHECKING:
    from hofl.memory.plan import MemoryPlan
    from hofl.memory.workload import Cost

_WIDTH = 26  # characters of the longest bar
_SHADES = {
    "weights": "█",
    "adapter and optimizer": "▓",
    "activations": "▒",
    "logits": "#",
    "transient": "░",
}
GIB = 2**30


def show_boundaries(console: Console, memory: "MemoryPlan", budget: int | None) -> None:
    """Print every boundary, one scale for all bars, the budget as a line through them."""
    groups = _groups(memory)
    most = max(cost.peak_bytes for costs in groups.values() for cost in costs)
    for name, costs in groups.items():
        title = "The same with " + name
        if name == "plain":
            title = f"Plain steps, {memory.model.layout.size:,} trainable parameters"
        console.print(_table(costs, title, most, budget))
    legend = "   ".join(f"{shade} {item}" for item, shade in _SHADES.items())
    say(console, legend + ("   | budget" if budget is not None and budget <= most else ""))


def _groups(memory: "MemoryPlan") -> dict[str, list["Cost"]]:
    groups = {"plain": memory.plain}
    for name, costs in groupby(memory.options, key=lambda cost: cost.execution.describe()):
        groups[name] = list(costs)
    return groups


def _table(costs: Sequence["Cost"], title: str, most: int, budget: int | None) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for column in ("boundary", "peak", "FO params", "uplink", "compute"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("what the peak is made of", no_wrap=True)
    for cost in costs:
        table.add_row(
            str(cost.boundary),
            show_bytes(cost.peak_bytes),
            f"{cost.fo_params:,}",
            show_bytes(cost.uplink_bytes),
            f"{cost.relative_compute:.2f}",
            bar(cost, most, budget),
        )
    return table


def bar(cost: "Cost", most: int, budget: int | None) -> str:
    """Return each item's share of the largest peak, in characters that add up to the cost's own."""
    drawn, total = "", 0
    for item, shade in _SHADES.items():
        total += cost.items[item]
        drawn += shade * (round(_WIDTH * total / most) - len(drawn))
    if budget is None or budget > most:
        return drawn
    place = round(_WIDTH * budget / most)
    drawn = drawn.ljust(place + 1)
    return drawn[:place] + "|" + drawn[place + 1 :]


def plan_panels(memory: "MemoryPlan", chosen: "Cost | None", budget: int | None) -> list[Panel]:
    """Return peak memory, uplink and compute against the boundary; the chosen plan is marked."""
    groups = _groups(memory)
    ends = [0.0, float(memory.model.num_blocks)]
    peaks = _lines(groups, [cost.peak_bytes / GIB for costs in groups.values() for cost in costs])
    compute = _lines(groups, [cost.relative_compute for costs in groups.values() for cost in costs])
    uplinks = [cost.uplink_bytes / 2**20 for cost in memory.plain]
    uplink = _lines({"plain": memory.plain}, uplinks)
    if chosen is not None:
        place = [float(chosen.boundary)]
        peaks.append(Line("chosen", place, [chosen.peak_bytes / GIB], 0))
        uplink.append(Line("chosen", place, [chosen.uplink_bytes / 2**20], 0))
        compute.append(Line("chosen", place, [chosen.relative_compute], 0))
    if budget is not None:
        peaks.append(Line("budget", ends, [budget / GIB] * 2))
    return [
        Panel("Peak memory of a device", "boundary", "GiB", peaks),
        Panel("Uplink", "boundary", "MiB", uplink),
        Panel("Compute", "boundary", "of full backpropagation", compute),
    ]


def _lines(groups: dict[str, list["Cost"]], values: Sequence[float]) -> list[Line]:
    lines, rest = [], list(values)
    for name, costs in groups.items():
        shown, rest = rest[: len(costs)], rest[len(costs) :]
        lines.append(Line(name, [float(cost.boundary) for cost in costs], shown))
    return lines
