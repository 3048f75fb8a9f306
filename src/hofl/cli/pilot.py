"""``hofl beta pilot``: choose beta by short runs on part of the data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import hofl
from hofl.choosing.guide import CANDIDATES
from hofl.cli import interrupts
from hofl.cli.display import RunDisplay, say
from hofl.cli.options import Changes, OptionalSource, numbers
from hofl.core.errors import HoflError

if TYPE_CHECKING:  # the engine takes seconds to load: only when something runs
    from hofl.choosing.pilot import Rung, Settings

EXAMPLES = {
    "pilot": (
        "hofl beta pilot demo fleet.strategy=paper --rounds 8 --out runs/pilot",
        "hofl beta pilot my.toml method.q=4 --min-participations 16 --out runs/p",
        "hofl beta pilot --resume runs/pilot",
        "hofl run runs/pilot/chosen.toml --out runs/formal",
    )
}
PAPER = ",".join(map(str, CANDIDATES))


def pilot(
    context: typer.Context,
    config: OptionalSource = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the pilot.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped pilot.")] = None,
    candidates: Annotated[str, typer.Option(help="Betas to compare, separated by commas.")] = PAPER,
    min_participations: Annotated[
        float | None, typer.Option(help="Leave out betas that expect fewer over the whole run.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the longest runs (an eighth of the run's).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings per candidate.")] = 3,
    examples: Annotated[
        int, typer.Option(help="Most examples of a client, held-out ones included; 0 for all.")
    ] = 80,
    holdout: Annotated[float, typer.Option(help="Share of these that is held out.")] = 0.25,
    level: Annotated[float, typer.Option(help="A p-value below it is conclusive.")] = 0.05,
) -> None:
    """Compare betas by short runs with successive halving; the smaller one when inconclusive.

    Writes a configuration with the chosen value for hofl run.
    """
    from hofl.choosing.pilot import Pilot, Settings

    interrupts.check()
    console = Console()
    if resume is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
        if given != {"resume"}:
            raise HoflError("--resume takes everything from the pilot: give no other option.")
        chosen = Pilot.open(resume)
    else:
        if config is None or out is None:
            raise HoflError("give a configuration and --out DIR, or --resume DIR (see --help).")
        run = hofl.read_config(config, changes)
        betas = numbers("--candidates", candidates, "0,0.25,0.5")
        settings = Settings.of(
            run,
            tuple(set(betas)),
            min_participations,
            rounds,
            seeds=seeds,
            examples=examples,
            holdout=holdout,
            level=level,
        )
        with interrupts.stoppable(console, out, "hofl beta pilot", "pilot.toml"):
            chosen = Pilot.create(out, settings, run)
    say(console, _plan(chosen.settings))
    with interrupts.stoppable(console, chosen.path, "hofl beta pilot", "pilot.toml"):
        outcome = chosen.run(lambda title: RunDisplay(console, title))
    for rung in outcome.rungs:
        console.print(_table(rung, outcome.beta if rung is outcome.rungs[-1] else None))
    say(console, f"chosen: beta = {outcome.beta:g}")
    say(console, f"next: hofl run {chosen.path / 'chosen.toml'} --out DIR")


def _plan(settings: "Settings") -> str:
    betas, lengths = settings.candidates, settings.rungs
    most = len(betas) * settings.seeds * lengths[-1]
    return (
        f"{len(betas)} candidates x {settings.seeds} trainings, compared after "
        f"{', '.join(map(str, lengths))} rounds; at most {most} rounds in all"
    )


def _table(rung: "Rung", chosen: float | None) -> Table:
    """Return one comparison; the last one shows the choice instead of who continues."""
    table = Table(title=f"after {rung.rounds} rounds")
    for column in ("beta", "client loss", "behind", "std. error", "p", "verdict", "then"):
        table.add_column(column, justify="right", no_wrap=True)
    best = min(standing.loss for standing in rung.standings)
    for standing in rung.standings:
        behind = standing.behind
        verdict = "inconclusive" if standing.inconclusive else "worse"
        table.add_row(
            f"{standing.beta:g}",
            f"{standing.loss:.5f}",
            f"{behind.mean:+.5f}",
            f"{behind.error:.5f}",
            "-" if standing.loss == best else f"{behind.p_value:.3g}",
            "best" if standing.loss == best else verdict,
            _next(standing.beta, rung, chosen),
        )
    return table


def _next(beta: float, rung: "Rung", chosen: float | None) -> str:
    if chosen is not None:
        return "chosen" if beta == chosen else "-"
    return "continues" if beta in rung.kept else "stops"
