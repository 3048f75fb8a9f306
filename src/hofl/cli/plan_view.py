"""What ``hofl plan`` shows: a table with bars, the options, and a figure."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hofl.planning.sizes import show_bytes
from hofl.report.panels import Line, Panel

if TYPE_CHECKING:  # the model libraries take seconds to load
    from hofl.planning.plan import MemoryPlan
    from hofl.planning.workload import Cost

_WIDTH = 26  # characters of the longest bar
_SHADES = {
    "weights": "█",
    "adapter and optimizer": "▓",
    "activations": "▒",
    "logits": "#",
    "transient": "░",
}
GIB = 2**30


def show(console: Console, memory: "MemoryPlan", strategy: str) -> None:
    """Print the plain plans, and the options when they are weighed."""
    size = memory.model.layout.size
    console.print(_table(memory.plain, f"Plain steps, {size:,} trainable parameters"))
    legend = "   ".join(f"{shade} {item}" for item, shade in _SHADES.items())
    console.print(legend, highlight=False)
    for name, costs in groupby(memory.weighed(strategy), key=_options_of):
        console.print(_table(list(costs), f"The same with {name}"))


def describe(cost: "Cost") -> str:
    """A plan in one line."""
    options = _options_of(cost)
    return (
        f"boundary {cost.boundary}{', ' + options if options else ''}: peak "
        f"{show_bytes(cost.peak_bytes)}, uplink {show_bytes(cost.uplink_bytes)}, "
        f"{cost.relative_compute:.2f} times the compute of full backpropagation"
    )


def itemised(cost: "Cost") -> str:
    """What a plan's peak is made of, in one line."""
    parts = (f"{item} {show_bytes(size)}" for item, size in cost.items.items())
    return f"at the peak: {', '.join(parts)}"


def plan_panels(
    memory: "MemoryPlan", strategy: str, budget: int | None, chosen: "Cost | None"
) -> list[Panel]:
    """Peak memory against the boundary beside uplink and compute; the chosen plan is marked."""
    groups = {"plain": memory.plain}
    for name, costs in groupby(memory.weighed(strategy), key=_options_of):
        groups[name] = list(costs)
    peaks = [_line(name, costs, chosen, "peak") for name, costs in groups.items()]
    if budget is not None:
        ends = [0.0, float(memory.model.num_blocks)]
        peaks.append(Line("budget", ends, [budget / GIB] * 2))
    return [
        Panel("Peak memory of a device", "boundary", "GiB", peaks),
        Panel("Uplink", "boundary", "MiB", [_line("plain", memory.plain, chosen, "uplink")]),
        Panel(
            "Compute",
            "boundary",
            "of full backpropagation",
            [_line(name, costs, chosen, "compute") for name, costs in groups.items()],
        ),
    ]


def _line(name: str, costs: Sequence["Cost"], chosen: "Cost | None", what: str) -> Line:
    values = {
        "peak": [cost.peak_bytes / GIB for cost in costs],
        "uplink": [cost.uplink_bytes / 2**20 for cost in costs],
        "compute": [cost.relative_compute for cost in costs],
    }
    mark = next((k for k, cost in enumerate(costs) if cost == chosen), None)
    return Line(name, [float(cost.boundary) for cost in costs], values[what], mark)


def _table(costs: Sequence["Cost"], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for column in ("boundary", "peak", "FO params", "uplink", "compute"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("what the peak is made of", no_wrap=True)
    most = max(cost.peak_bytes for cost in costs)
    for cost in costs:
        table.add_row(
            str(cost.boundary),
            show_bytes(cost.peak_bytes),
            f"{cost.fo_params:,}",
            show_bytes(cost.uplink_bytes),
            f"{cost.relative_compute:.2f}",
            _bar(cost, most),
        )
    return table


def _bar(cost: "Cost", most: int) -> str:
    """Each item's share of the largest peak, in characters that add up to the cost's own."""
    bar, total = "", 0
    for item, shade in _SHADES.items():
        total += cost.items[item]
        bar += shade * (round(_WIDTH * total / most) - len(bar))
    return bar


def _options_of(cost: "Cost") -> str:
    return cost.execution.describe()
