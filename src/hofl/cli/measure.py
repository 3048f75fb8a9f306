"""``hofl beta measure``: measure a fleet's updates before training and fit policies to them."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import hofl
from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.cli.options import Changes, Source
from hofl.core.errors import HoflError

if TYPE_CHECKING:  # loading the engine takes seconds: only when something is run
    from hofl.choosing.measure import PolicyRow
    from hofl.choosing.moments import FleetMeasurement, WithError
    from hofl.rules import LocalRule

DIRECTIONS = 2
"""The paper's q, for methods without directions of their own."""
EXAMPLES = {
    "measure": (
        "hofl beta measure demo --out runs/measured",
        "hofl beta measure demo --after runs/a --out runs/measured-a",
        "hofl run runs/measured/water-filling.toml --out runs/filled",
    )
}


def measure(
    config: Source,
    out: Annotated[Path, typer.Option(help="New folder for the measurement.")],
    changes: Changes = None,
    repetitions: Annotated[
        int, typer.Option(help="R, updates and gradients of every client (at least 3).")
    ] = 6,
    floor: Annotated[
        float, typer.Option(help="epsilon: every share of water-filling and the QP >= epsilon / N.")
    ] = 0.1,
    means: Annotated[
        str, typer.Option(help="a_i from: updates, or (less noisy, SGD only) gradients.")
    ] = "updates",
    smoothness: Annotated[
        float | None, typer.Option(help="L; measured by power iteration when not given.")
    ] = None,
    after: Annotated[
        Path | None, typer.Option(help="Measure where this run stands, not at the start.")
    ] = None,
) -> None:
    """Measure every client's update before training, and compare the policies that need it.

    Writes statistics.json, and water-filling.toml for hofl run.
    """
    from hofl.choosing.measure import advanced, compare_policies, measure_fleet, save_measurement
    from hofl.choosing.moments import LEAST
    from hofl.experiment.launch import readable_errors
    from hofl.experiment.launcher import prepared
    from hofl.sampling.water_filling import check_floor

    interrupts.check()
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
    if after is not None:
        experiment = advanced(experiment, after)
    with readable_errors(out):
        out.mkdir(parents=True, exist_ok=True)  # fail before measuring, not after it
    with (
        interrupts.stoppable(console, out, "hofl beta measure", "statistics.json"),
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("measuring", total=None)

        def advance(done: int, total: int) -> None:
            interrupts.check()
            progress.update(bar, completed=done, total=total)

        measured = measure_fleet(experiment, repetitions, smoothness, means == "gradients", advance)
    with readable_errors(out):
        save_measurement(measured, experiment, floor, out)
    rows, notes = compare_policies(measured, experiment, floor)
    console.print(_moments(measured))
    h_a, zeta2 = _shown(measured.dispersion), _shown(measured.heterogeneity)
    say(console, f"H_a = {h_a}, zeta^2 = {zeta2}")
    if means == "updates" and measured.dispersion.value < 2 * measured.dispersion.error:
        say(console, "H_a is within its noise: raise --repetitions, or try --means gradients")
    s = measured.statistics
    say(console, f"L = {s.smoothness:.4g}, h = {s.step:.4g}, g is the {measured.reference}")
    _say_signal(console, measured, experiment.method.local, experiment.cohort_size)
    console.print(_policies(rows, measured, experiment.cohort_size))
    for note in [*notes, *_limits(measured)]:
        say(console, note)
    say(console, f"next: hofl run {out / 'water-filling.toml'} --out DIR")


def _limits(measured: "FleetMeasurement") -> list[str]:
    """Where J is not a bound on a round's progress."""
    s = measured.statistics
    if measured.reference != "gradient":
        return ["L h has no unit with this optimizer: J ranks policies and is not a bound"]
    if s.smoothness * s.step > 1:
        return [f"L h = {s.smoothness * s.step:.3g} > 1: the descent guarantee needs L h <= 1"]
    return []


def _moments(measured: "FleetMeasurement") -> Table:
    """Return means over the clients of each tier."""
    table = _table("boundary", "clients", "v_i", "||a_i - mean||^2", "minibatch noise")
    tiers = np.array(measured.boundaries)
    for tier in np.unique(tiers).tolist():
        members = tiers == tier
        columns = (measured.statistics.variances, measured.statistics.spread, measured.noise)
        cells = (f"{column[members].mean():.4g}" for column in columns)
        table.add_row(str(tier), str(members.sum()), *cells)
    return table


def _say_signal(
    console: Console, measured: "FleetMeasurement", rule: "LocalRule", cohort: int
) -> None:
    """Print what a bottom can learn from one estimate, and from all those of a round."""
    if not measured.signals:
        return
    q, estimates = rule.q or DIRECTIONS, cohort * rule.local_steps
    headings = (f"{how}, {of}" for of in ("1 step", "1 round") for how in ("exact", f"q = {q}"))
    table = _table("boundary", "d_ZO", "signal share", *headings)
    where = f"after round {measured.round}" if measured.round else "at the start"
    table.title = f"bottom: signal in a minibatch gradient {where}, and cosines to reach"
    for tier in measured.signals:
        cosines = (tier.cosine(n, m) for m in (1, estimates) for n in (0, q))
        cells = (f"{cosine:.3g}" for cosine in cosines)
        table.add_row(str(tier.boundary), str(tier.dims), _shown(tier.share), *cells)
    console.print(table)
    if any(tier.share.value < 2 * tier.share.error for tier in measured.signals):
        say(console, "a signal share is within its noise: raise --repetitions to resolve it")
    least = min(tier.dims for tier in measured.signals)
    say(
        console,
        f"cos^2 = share / (1 + (d_ZO + 1)/q): one exact step of the bottom earns what "
        f"{1 + (least + 1) / q:,.0f} or more zeroth-order ones with q = {q} do",
    )


def _policies(rows: "list[PolicyRow]", measured: "FleetMeasurement", cohort: int) -> Table:
    boundaries = np.array(measured.boundaries)
    tiers = np.unique(boundaries).tolist()
    table = _table("policy", *(f"tier {tier}" for tier in tiers), "J(p)", "relaxed")
    table.title = "seats per round, and the program's value"
    for row in rows:
        seats = (f"{cohort * row.p[boundaries == tier].sum():.3g}" for tier in tiers)
        table.add_row(row.name, *seats, f"{row.objective:.5g}", f"{row.relaxed:.5g}")
    return table


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, justify="right")
    table.columns[0].no_wrap = True
    return table


def _shown(estimate: "WithError") -> str:
    return f"{estimate.value:.4g} +/- {estimate.error:.2g}"
