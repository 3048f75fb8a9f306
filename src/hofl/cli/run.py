"""``hofl run``: run any experiment, or go on with one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli.progress import RunDisplay
from hofl.cli.tables import summary_table, wire_line
from hofl.errors import HoflError
from hofl.experiment.config import ExperimentConfig
from hofl.sampling.audit import verdict

if TYPE_CHECKING:  # loading the engine takes seconds: only when something is run
    from hofl.engines.launch import Result

EXAMPLE = """Examples:

`hofl run demo method.name=fedavg rounds=3 --out runs/fedavg`

`hofl run my.toml method.lr=2e-3 engine.workers=2 --out runs/a`

`hofl run --resume runs/a`
"""


def run(
    config: Annotated[
        str | None, typer.Argument(help="TOML file, or the name of a recipe such as demo.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Changes to it: key=value, such as method.lr=1e-3, or ~key to take one out."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a stopped run to go on with.")
    ] = None,
) -> None:
    """Run an experiment from a configuration, or resume one after a stop or a kill."""
    console = Console()
    if resume is not None:
        if config is not None or out is not None:
            raise HoflError("--resume takes its configuration from the run: give nothing else.")
        result = resume_shown(console, resume)
    else:
        if config is None or out is None:
            raise HoflError("give a configuration and --out DIR, or --resume DIR (see --help).")
        result = run_shown(console, hofl.read_config(config, changes), out)
    shown_result(console, result)


def shown_result(console: Console, result: "Result") -> None:
    """The summary of a finished run, and where its adapter is."""
    console.print(summary_table([result.summary]))
    if "audit" in result.summary:  # runs finished by an earlier version have none
        console.print(verdict(result.summary["audit"]), highlight=False, soft_wrap=True)
    if "wire" in result.summary:
        console.print(wire_line(result.summary["wire"]), highlight=False, soft_wrap=True)
    console.print(f"adapter: {result.adapter}", markup=False, highlight=False, soft_wrap=True)


def run_shown(console: Console, config: ExperimentConfig, out: Path) -> "Result":
    """Run with a progress display; a stop tells how to go on."""
    with stoppable(console, out, "hofl run"), RunDisplay(console, config.method.name) as display:
        return hofl.run(config, out, display)


def resume_shown(console: Console, path: Path) -> "Result":
    """Go on with a run, with a progress display."""
    with stoppable(console, path, "hofl run"), RunDisplay(console, path.name) as display:
        return hofl.resume(path, display)


def goes_on(console: Console, path: Path, config: str | None) -> bool:
    """Whether there is a run to go on with; then its own configuration holds, and this is said."""
    own = path / "config.toml"
    if own.is_file() and config is not None:
        text = f"going on with {own}; {config} is for a new run and has no effect."
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return own.is_file()


@contextmanager
def stoppable(
    console: Console,
    path: Path,
    command: str,
    first: str = "config.toml",
    option: str = "--resume",
) -> Iterator[None]:
    """Ctrl-C inside ends the command cleanly and says how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        started = (path / first).is_file()
        hint = f"go on with: {command} {option} {path}" if started else "nothing was written"
        console.print(f"stopped; {hint}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
