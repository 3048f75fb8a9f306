"""``hofl repair``: bring a damaged run back to work."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = {"repair": ("hofl repair runs/a",)}


def repair(run: Annotated[Path, typer.Argument(help="Folder of the run.")]) -> None:
    """Return a run to its last sound checkpoint, and remove what is damaged.

    Nothing else is lost: resuming it trains the rounds after that one again.
    """
    from hofl.experiment.repair import repair as repaired

    done = repaired(run)
    for line in done:
        typer.echo(line)
    typer.echo("now resume the run" if done else "nothing is damaged")
