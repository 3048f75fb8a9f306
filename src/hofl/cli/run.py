"""``hofl run`` and ``hofl demo``: run experiments, or resume them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli import interrupts
from hofl.cli.display import RunDisplay, say, show_result, summary_table
from hofl.cli.options import Changes, FromRound, OptionalSource, more_rounds
from hofl.core.errors import HoflError
from hofl.experiment.records import RunSummary
from hofl.experiment.runs import RunDirectory

if TYPE_CHECKING:
    from hofl.experiment.config import ExperimentConfig

EXAMPLES = {
    "run": (
        "hofl run demo method.name=fedavg rounds=3 --out runs/fedavg",
        "hofl run my.toml method.optimizer.lr=2e-3 engine.workers=2 --out runs/a",
        "hofl run --resume runs/a",
        "hofl run --resume runs/a rounds=60",
    ),
    "demo": ("hofl demo --out runs/demo",),
}
DEMO: dict[str, tuple[str, ...]] = {
    "plan": (),
    "fedavg": ("method.name=fedavg", "fleet.budgets=[]"),
    "hofl": ("fleet.strategy=paper",),
    "frozen-bottom": ("method.name=frozen-bottom", "fleet.strategy=paper"),
}
"""What the demo compares: changes of its recipe. The first is hofl's own plan for the budgets."""


def run(
    config: OptionalSource = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped run.")] = None,
    from_round: FromRound = None,
) -> None:
    """Run an experiment from a configuration, or resume one after a stop or a kill.

    With rounds=N, extend a resumed run to N rounds: its result is that of a new run of N rounds.
    """
    console = Console()
    if resume is not None:
        if out is not None:
            raise HoflError("--resume continues in the run's own folder: give no --out.")
        rounds = more_rounds([] if config is None else [config, *(changes or [])])
        with interrupts.stoppable(console, resume, "hofl run"):
            summary = resume_shown(console, resume, from_round, rounds)
        show_result(console, resume, summary)
    else:
        if from_round is not None:
            raise HoflError("--from-round is for --resume DIR.")
        if config is None or out is None:
            raise HoflError("give a configuration and --out DIR, or --resume DIR (see --help).")
        asked = hofl.read_config(config, changes)
        with interrupts.stoppable(console, out, "hofl run"):
            summary = run_shown(console, asked, out)
        show_result(console, out, summary)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
) -> None:
    """Fine-tune SmolLM2-135M over twelve simulated devices in four ways.

    Each device by its own plan; FedAvg, which exceeds the budgets; HO-FL as in the paper within
    them; the frozen control. Finished runs are shown again, and a stopped one is resumed.
    """
    from hofl.models.sources import fetch

    console = Console()
    config = hofl.read_config("demo")
    with console.status("fetching the model (once)"):
        fetch(config.model.name)
    with interrupts.stoppable(
        console, out, "hofl demo", f"{next(iter(DEMO))}/config.toml", "--out"
    ):
        summaries = [_demo_run(console, out / name, list(DEMO[name])) for name in DEMO]
    # Not as a comparison: the four have different fleets on purpose.
    console.print(summary_table(summaries, list(DEMO)))
    say(console, f"adapter: {out / next(iter(DEMO)) / summaries[0].adapter}")


def _demo_run(console: Console, folder: Path, changes: list[str]) -> RunSummary:
    """Run one way of the demo, or resume it."""
    if (folder / "config.toml").is_file():
        return resume_shown(console, folder)
    return run_shown(console, hofl.read_config("demo", changes), folder)


def run_shown(console: Console, config: "ExperimentConfig", out: Path) -> RunSummary:
    """Run with a progress display."""
    with RunDisplay(console, out.name) as display:
        interrupts.load("hofl.experiment.rounds")
        return hofl.run(config, out, display, progress=False).record


def resume_shown(
    console: Console, path: Path, from_round: int | None = None, rounds: int | None = None
) -> RunSummary:
    """Resume a run with a progress display; a finished one needs no library of models."""
    directory = RunDirectory.open(path)
    finished = directory.finished() if from_round is None else None
    if finished is not None and rounds in (None, finished.rounds):
        return finished
    with RunDisplay(console, path.name) as display:
        interrupts.load("hofl.experiment.rounds")
        result = hofl.resume(path, display, from_round=from_round, rounds=rounds, progress=False)
        return result.record
