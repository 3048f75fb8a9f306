"""``hofl demo``: three methods on a real model, side by side, in a few minutes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli.run import resume_shown, run_shown
from hofl.cli.tables import summary_table
from hofl.models.sources import fetch

EXAMPLE = "Example:\n\n`hofl demo --out runs/demo`"
METHODS = ("hofl", "fedavg", "frozen-bottom")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/demo"),
) -> None:
    """Fine-tune SmolLM2-135M over twelve simulated devices: HO-FL, FedAvg, frozen bottom.

    Runs that were finished before are shown again, and a stopped one goes on.
    """
    console = Console()
    config = hofl.read_config("demo")
    with console.status("fetching the model (once)"):
        fetch(config.model.name)
    summaries = []
    for name in METHODS:
        folder = out / name
        if (folder / "config.toml").is_file():
            result = resume_shown(console, folder)
        else:
            result = run_shown(console, hofl.read_config("demo", [f"method.name={name}"]), folder)
        summaries.append(result.summary)
    console.print(summary_table(summaries))
    console.print(
        f"adapter: {out / METHODS[0] / 'adapter'}", markup=False, highlight=False, soft_wrap=True
    )
