"""``hofl beta measure``: what a fleet's updates look like before training, and what follows."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import hofl
from hofl.cli.run import stoppable
from hofl.errors import HoflError

if TYPE_CHECKING:  # loading the engine takes seconds: only when something is run
    from hofl.choosing.comparison import Row
    from hofl.sampling.measured import Estimate, Measured

EXAMPLE = """Examples:

`hofl beta measure demo --out runs/measured`

`hofl run runs/measured/water-filling.toml --out runs/filled`
"""


def measure(
    config: Annotated[str, typer.Argument(help="TOML file, or a recipe such as demo.")],
    out: Annotated[Path, typer.Option(help="New folder for what is measured.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to it: key=value, such as method.lr=1e-3.")
    ] = None,
    repetitions: Annotated[
        int, typer.Option(help="R, updates and gradients of every client (at least 3).")
    ] = 4,
    floor: Annotated[
        float, typer.Option(help="epsilon: water-filling and the QP leave everyone epsilon / N.")
    ] = 0.1,
    means: Annotated[
        str, typer.Option(help="a_i from: updates, or (less noisy, SGD only) gradients.")
    ] = "updates",
    smoothness: Annotated[
        float | None, typer.Option(help="L; measured by power iteration when not given.")
    ] = None,
) -> None:
    """Measure every client's update before training, and compare the policies that need it.

    Writes statistics.json, and water-filling.toml for hofl run.
    """
    from hofl.choosing.comparison import compared, save
    from hofl.choosing.probe import probe
    from hofl.engines.launch import prepared, readable_errors
    from hofl.sampling.checks import check_floor
    from hofl.sampling.measured import LEAST

    console = Console()
    check_floor(floor)
    if means not in ("updates", "gradients"):
        raise HoflError(f"--means is updates or gradients, got {means!r}.")
    if repetitions < LEAST:
        raise HoflError(f"repetitions must be at least {LEAST}, got {repetitions}.")
    if smoothness is not None and not 0 <= smoothness < math.inf:
        raise HoflError(f"smoothness must be finite, not negative; got {smoothness}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HoflError(f"{out} exists and is not empty. Choose another --out.")
    experiment = prepared(hofl.read_config(config, changes))
    with readable_errors(out):
        out.mkdir(parents=True, exist_ok=True)  # told now, not after the probing
    with (
        stoppable(console, out, "hofl beta measure", "statistics.json"),
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("probing", total=None)
        found = probe(
            experiment,
            repetitions,
            smoothness,
            means == "gradients",
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    with readable_errors(out):
        save(found, experiment.config, floor, out)
    rows, note = compared(found, experiment, floor)
    console.print(_moments(found))
    _say(console, f"H_a = {_shown(found.dispersion)}, zeta^2 = {_shown(found.heterogeneity)}")
    if means == "updates" and found.dispersion.value < 2 * found.dispersion.error:
        _say(console, "H_a is lost in noise: add --repetitions, or try --means gradients")
    s = found.statistics
    _say(console, f"L = {s.smoothness:.4g}, h = {s.step:.4g}, g is the {found.reference}")
    console.print(_policies(rows, found, experiment.config.fleet.cohort))
    if note:
        _say(console, note)
    _say(console, f"go on with: hofl run {out / 'water-filling.toml'} --out DIR")


def _moments(found: "Measured") -> Table:
    """Means over the clients of each tier."""
    table = _table("boundary", "clients", "v_i", "||a_i - mean||^2", "minibatch noise")
    tiers = np.array(found.boundaries)
    for tier in np.unique(tiers).tolist():
        members = tiers == tier
        columns = (found.statistics.variances, found.statistics.spread, found.noise)
        cells = (f"{column[members].mean():.4g}" for column in columns)
        table.add_row(str(tier), str(members.sum()), *cells)
    return table


def _policies(rows: "list[Row]", found: "Measured", cohort: int) -> Table:
    tiers = np.array(found.boundaries)
    kinds = np.unique(tiers).tolist()
    table = _table("policy", *(f"tier {kind}" for kind in kinds), "J(p)", "relaxed")
    table.title = "seats per round, and the program's value"
    for row in rows:
        seats = (f"{cohort * row.p[tiers == kind].sum():.3g}" for kind in kinds)
        table.add_row(row.name, *seats, f"{row.objective:.5g}", f"{row.relaxed:.5g}")
    return table


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, justify="right")
    table.columns[0].no_wrap = True
    return table


def _shown(estimate: "Estimate") -> str:
    return f"{estimate.value:.4g} +/- {estimate.error:.2g}"


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
