"""``hofl plan``: what a device should run within its budget, and what the alternatives cost."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import hofl
from hofl.cli.display import say
from hofl.cli.options import AsJson, Backward, Disk, Plot, Seconds, Uplink
from hofl.cli.split import role_table, split_costs
from hofl.core.errors import HoflError
from hofl.core.sizes import show_bytes
from hofl.reporting.figures import check_figure

if TYPE_CHECKING:  # the model libraries take seconds to load
    from hofl.memory.alternatives import Alternative
    from hofl.memory.planner import Planner
    from hofl.memory.workload import Cost

EXAMPLES = {
    "plan": (
        "hofl plan --model Qwen/Qwen2.5-1.5B --seq-len 1024 --budget 8GiB",
        "hofl plan --model Qwen/Qwen2.5-1.5B --budget 1.2GiB --write fleet.toml",
        "hofl plan --model smollm2-135m-instruct --all --plot plan.png",
    )
}


def plan(
    model: Annotated[
        str, typer.Option(help="Built-in model, folder or hub id; only its configuration is read.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 16,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 1024,
    budget: Annotated[str | None, typer.Option(help="Memory of a device: 12GiB, or free.")] = None,
    backward: Backward = True,
    disk: Disk = None,
    read_speed: Annotated[str | None, typer.Option(help="Of that disk: 500MiB/s.")] = None,
    gflops: Annotated[float | None, typer.Option(help="Speed of the device.")] = None,
    seconds: Seconds = None,
    uplink: Uplink = None,
    strategy: Annotated[
        str, typer.Option(help="best: exact where it can be; paper: plain hybrid steps.")
    ] = "best",
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
    show_all: Annotated[
        bool, typer.Option("--all", help="Also every boundary, plain and with options.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="Write the TOML to this new file.")] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Choose what a device runs: exact where it can be, hybrid where it must be.

    The client's own step runs on tensors without data: no weights and no GPU are needed. The
    defaults are the paper's setting, a BF16 backbone and BF16 activations under an FP32 adapter.
    Without a budget only the costs are shown.
    """
    if write is not None and write.exists():
        raise HoflError(f"{write} exists already: --write makes a new file.")
    if write is not None and not write.parent.is_dir():
        raise HoflError(f"cannot write {write}: {write.parent} is not a folder.")
    if write is not None and budget is None:
        raise HoflError("--write needs --budget: there is no plan to write.")
    if plot is not None:
        check_figure(plot)
    planned = hofl.plan(
        model,
        budget,
        batch_size=batch_size,
        seq_len=seq_len,
        backward=backward,
        disk=disk,
        read_speed=read_speed,
        gflops=gflops,
        seconds=seconds,
        uplink=uplink,
        strategy=strategy,
        method=method_name,
        q=q,
        optimizer=optimizer,
        rank=rank,
        storage_dtype=storage_dtype,
        compute_dtype=compute_dtype,
        answer_tokens=answer_tokens,
    )
    planner, chosen, device = planned.planner, planned.chosen, planned.device
    roles = split_costs(planner)
    if plot is not None:
        _plot(planner, chosen, None if device is None else device.memory, plot)
    toml = planned.toml
    if write is not None and toml is None:
        raise HoflError(
            f"--write has nothing to write for {method_name}, which cuts all devices at one "
            "boundary: choose one whose client fits, and set fleet.boundaries=[B]."
        )
    if write is not None and toml is not None:
        _write(write, toml)
    if as_json:
        split = {"split": [cost.to_json() for cost in roles]} if roles else {}
        typer.echo(json.dumps({**planned.facts(every_boundary=show_all), **split}))
        return
    console = Console()
    if chosen is not None:
        say(console, planned.recommendation)
    console.print(_table(planned.alternatives))
    if roles:
        console.print(role_table(roles, None if device is None else device.memory))
    if show_all:
        from hofl.cli.boundaries import show_boundaries

        show_boundaries(console, planner.memory, None if device is None else device.memory)
    if toml is not None:
        say(console, f"\nin {write}:" if write else "\nto paste into a configuration:")
        say(console, toml.rstrip())
    if plot is not None:
        say(console, f"figure: {plot}")


def _write(path: Path, toml: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:  # a new file, whatever happened meanwhile
            file.write(toml)
    except OSError as error:
        raise HoflError(f"cannot write {path}: {error.strerror}.") from None


def _table(rows: "list[Alternative]") -> Table:
    table = Table(box=None)
    table.add_column("", no_wrap=True)
    table.add_column("alternative")
    for column in ("peak", "time", "uplink", "exact", "zeroth"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        cost = row.cost
        total = max(cost.fo_params + row.below, 1)
        mark = "*" if row.chosen else "" if row.fits is not False else "x"
        table.add_row(
            mark,
            f"{row.name}: {cost.describe()}",
            show_bytes(cost.peak_bytes),
            f"{cost.relative_compute:.2f}",
            show_bytes(cost.uplink_bytes),
            f"{100 * cost.exact_params / total:.0f} %",
            f"{100 * cost.zo_params / total:.0f} %",
        )
    table.caption = "* chosen   x does not fit   time and compute: block passes over those of FO"
    return table


def _plot(planner: "Planner", chosen: "Cost | None", budget: int | None, path: Path) -> None:
    from hofl.cli.boundaries import plan_panels
    from hofl.reporting.figures import write_panels

    write_panels(plan_panels(planner.memory, chosen, budget), path)
