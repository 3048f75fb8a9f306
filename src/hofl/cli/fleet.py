"""``hofl fleet``: a network run with all its devices on this machine, as a rehearsal."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli.progress import RunDisplay
from hofl.cli.run import goes_on, shown_result, stoppable

EXAMPLE = """Examples:

`hofl fleet demo rounds=2 --devices 3 --out runs/rehearsal`

`hofl fleet my.toml --devices 3 --memory 2GiB,4GiB,8GiB --out runs/rehearsal`
"""


def fleet(
    config: Annotated[str, typer.Argument(help="TOML file, or the name of a recipe.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to it: key=value, such as method.lr=1e-3.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="How many devices.")] = 3,
    memory: Annotated[
        str,
        typer.Option(
            help="Their budgets, such as 2GiB,4GiB; else those of CONFIG, or its boundaries."
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/fleet"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
) -> None:
    """Start a server and its devices here, on loopback, and train: a dress rehearsal."""
    from hofl.engines.rehearsal import rehearse, sized

    console, chosen = Console(), sized(hofl.read_config(config, changes), devices)
    budgets = [word.strip() for word in memory.split(",") if word.strip()]
    sizes = f"--memory {','.join(budgets)} " if budgets else ""
    words = shlex.join([config, *(changes or ())])
    hint = f"hofl fleet {words} --devices {devices} {sizes}--resume"
    again = resume and goes_on(console, out, config)
    with (
        stoppable(console, out, hint, option="--out"),
        RunDisplay(console, chosen.method.name) as display,
    ):
        result = rehearse(chosen, out, memory=budgets, resume=again, observe=display)
    shown_result(console, result)
