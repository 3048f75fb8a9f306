"""``hofl split``: train with the bottom on clients and the top on a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import hofl
from hofl.cli import interrupts
from hofl.cli.display import RunDisplay, say, summary_table
from hofl.cli.options import Changes, OptionalSource
from hofl.core.errors import HoflError
from hofl.core.sizes import show_bytes
from hofl.experiment.records import RunSummary
from hofl.experiment.runs import RunDirectory
from hofl.workflows import WORKFLOWS

if TYPE_CHECKING:
    from hofl.memory.planner import Planner
    from hofl.twoparty.plan import RoleCost

EXAMPLES = {
    "split": (
        "hofl split sst2 method.name=ho-sfl method.local_steps=1 --out runs/ho-sfl",
        "hofl split one-client.toml method.name=hosl --out runs/hosl",
        "hofl split my.toml method.name=heron-sfl --processes 2 --out runs/heron",
        "hofl split --resume runs/heron",
    ),
}


def split(
    config: OptionalSource = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped run.")] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Of clients, beside one of the server; 0: all in this one.")
    ] = 0,
) -> None:
    """Run HO-SFL, HOSL or HERON-SFL: clients hold the bottom, a server holds the top.

    They exchange activations in every step. A study on one machine: messages are not encrypted and
    stay on 127.0.0.1. The configuration is that of hofl run; rounds are steps, and all clients are
    cut at one boundary.
    """
    console = Console()
    if resume is not None and (config is not None or out is not None):
        raise HoflError("--resume takes its configuration from the run: give nothing else.")
    if resume is None and (config is None or out is None):
        raise HoflError("give a configuration and --out DIR, or --resume DIR (see --help).")
    folder = resume or out
    assert folder is not None
    summary = None if resume is None else RunDirectory.open(folder).finished()
    if summary is None:
        summary = _run(console, config, changes, folder, resume is not None, processes)
    console.print(summary_table([summary]))
    if summary.ledger:
        console.print(ledger_table(summary.ledger))
    for role, peak in (("client", summary.peak_bytes), ("server", summary.server_peak_bytes)):
        if peak:
            say(console, f"peak memory of the {role}: {show_bytes(peak)}")
    say(console, f"adapter: {folder / summary.adapter}")


def _run(
    console: Console,
    source: str | None,
    changes: list[str] | None,
    folder: Path,
    resumed: bool,
    processes: int,
) -> RunSummary:
    config = None if source is None else hofl.read_config(source, changes)
    with (
        interrupts.stoppable(console, folder, "hofl split"),
        RunDisplay(console, folder.name) as display,
    ):
        interrupts.load("hofl.twoparty.run")
        from hofl.twoparty.run import resume_split, run_split

        if resumed or config is None:
            return resume_split(folder, display, processes).record
        return run_split(config, folder, display, processes).record


def ledger_table(ledger: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return what crossed between the roles, by category."""
    table = Table("what crossed", box=None)
    for column in ("tensors", "bytes"):
        table.add_column(column, justify="right")
    for category, entry in ledger.items():
        table.add_row(category, f"{entry['count']:,}", show_bytes(entry["bytes"]))
    return table


def split_costs(planner: "Planner") -> "list[RoleCost]":
    """Return what both roles need at every quarter of the model; nothing unless it splits."""
    if not planner.method.splits:
        return []
    from hofl.twoparty.plan import role_cost

    memory, method = planner.memory, planner.method
    blocks = memory.model.num_blocks
    quarters = sorted({max(1, min(blocks - 1, blocks * n // 4)) for n in (1, 2, 3)})
    travels = WORKFLOWS[method.workflow.name].averages_weights
    return [role_cost(memory.model, memory.workload, b, travels) for b in quarters]


def role_table(costs: "Sequence[RoleCost]", budget: int | None) -> Table:
    """Return the costs of both roles, and which clients fit a budget."""
    table = Table(title="between client and server (hofl split)", title_justify="left", box=None)
    names = ("", "boundary", "client", "server", "up", "down", "weights", "client", "server")
    for column in names:
        table.add_column(column, justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(
            "x" if budget is not None and cost.client_bytes > budget else "",
            str(cost.boundary),
            show_bytes(cost.client_bytes),
            show_bytes(cost.server_bytes),
            show_bytes(cost.up_bytes),
            show_bytes(cost.down_bytes),
            show_bytes(cost.weights_bytes),
            f"{cost.client_passes:.0f}",
            f"{cost.server_passes:.0f}",
        )
    table.caption = "peaks; bytes per exchanged batch; weights each way per round; block passes"
    return table
