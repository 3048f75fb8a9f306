"""``hofl plan``: what a local step will need at every boundary, without running it."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.cli.options import AsJson, Plot
from hofl.core.sizes import show_bytes
from hofl.report.figures import Line, Panel, write_panels

if TYPE_CHECKING:  # the model libraries take seconds to load
    from hofl.memory.plan import MemoryPlan
    from hofl.memory.workload import Cost

EXAMPLES = {
    "plan": (
        "hofl plan --model Qwen/Qwen2.5-1.5B --seq-len 1024 --budget 12GiB",
        "hofl plan --model smollm2-135m-instruct --strategy best --budget 1GiB",
    )
}
_WIDTH = 26  # characters of the longest bar
_SHADES = {
    "weights": "█",
    "adapter and optimizer": "▓",
    "activations": "▒",
    "logits": "#",
    "transient": "░",
}
GIB = 2**30


def plan(
    model: Annotated[
        str, typer.Option(help="Built-in model, folder or hub id; only its configuration is read.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 16,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 1024,
    budget: Annotated[str | None, typer.Option(help="Memory of a device: 12GiB, or free.")] = None,
    strategy: Annotated[
        str, typer.Option(help="paper: plain steps only; best: weigh all options.")
    ] = "paper",
    method_name: Annotated[
        str, typer.Option("--method", help="Whose local step (hofl methods).")
    ] = "hofl",
    q: Annotated[int | None, typer.Option(help="Directions per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or sgd.")] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the LoRA adapter.")] = 8,
    storage_dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "bfloat16",
    compute_dtype: Annotated[str, typer.Option(help="Of the activations.")] = "bfloat16",
    answer_tokens: Annotated[
        int, typer.Option(help="Tokens to predict per example; 0 is one label word.")
    ] = 0,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Predict peak memory, uplink and compute at every boundary, and choose one for a budget.

    The client's own step runs on tensors without data: no weights and no GPU are needed. The
    defaults are the paper's setting, a BF16 backbone and BF16 activations under an FP32 adapter.
    """
    from hofl.memory.device import budget_bytes
    from hofl.memory.plan import memory_plan, strategy_named
    from hofl.methods import method

    strategy_named(strategy)
    limit = None if budget is None else budget_bytes(budget)
    changes = {"q": q, "optimizer": optimizer}
    memory = memory_plan(
        model,
        method(method_name, **{k: v for k, v in changes.items() if v is not None}).local,
        batch_size=batch_size,
        seq_len=seq_len,
        answer_tokens=answer_tokens,
        rank=rank,
        storage_dtype=storage_dtype,
        compute_dtype=compute_dtype,
    )
    chosen = None if limit is None else memory.choose(limit, strategy)
    if plot is not None:
        write_panels(_panels(memory, strategy, limit, chosen), plot)
    if as_json:
        typer.echo(json.dumps(memory.facts(model, chosen)))
        return
    console = Console()
    _show(console, memory, strategy)
    if plot is not None:
        say(console, f"figure: {plot}")
    if limit is not None:
        fitting = chosen or memory.fitting(limit, strategy)
        say(console, f"{show_bytes(limit)}: {_described(fitting)}")
        say(console, _itemised(fitting))


def _show(console: Console, memory: "MemoryPlan", strategy: str) -> None:
    """Print the plain plans, and the options when they are weighed."""
    size = memory.model.layout.size
    console.print(_table(memory.plain, f"Plain steps, {size:,} trainable parameters"))
    legend = "   ".join(f"{shade} {item}" for item, shade in _SHADES.items())
    say(console, legend)
    for name, costs in groupby(memory.weighed(strategy), key=_options_of):
        console.print(_table(list(costs), f"The same with {name}"))


def _described(cost: "Cost") -> str:
    """Return a plan in one line."""
    options = _options_of(cost)
    return (
        f"boundary {cost.boundary}{', ' + options if options else ''}: peak "
        f"{show_bytes(cost.peak_bytes)}, uplink {show_bytes(cost.uplink_bytes)}, "
        f"{cost.relative_compute:.2f} times the compute of full backpropagation"
    )


def _itemised(cost: "Cost") -> str:
    """Say in one line what a plan's peak is made of."""
    parts = (f"{item} {show_bytes(size)}" for item, size in cost.items.items())
    return f"at the peak: {', '.join(parts)}"


def _panels(
    memory: "MemoryPlan", strategy: str, budget: int | None, chosen: "Cost | None"
) -> list[Panel]:
    """Return peak memory, uplink and compute against the boundary; the chosen plan is marked."""
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
    """Return each item's share of the largest peak, in characters that add up to the cost's own."""
    bar, total = "", 0
    for item, shade in _SHADES.items():
        total += cost.items[item]
        bar += shade * (round(_WIDTH * total / most) - len(bar))
    return bar


def _options_of(cost: "Cost") -> str:
    return cost.execution.describe()
