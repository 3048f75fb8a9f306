"""``hofl curve``: how runs went, round by round."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.cli.options import AsJson, Plot
from hofl.reporting.curves import curve_panels, learning_curve
from hofl.reporting.figures import check_figure, write_panels

EXAMPLES = {
    "curve": (
        "hofl curve runs/sst2",
        "hofl curve runs/hofl runs/fedavg --plot curves.html",
    )
}


def curve(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show the scores and training losses of runs, finished or running."""
    if plot is not None:
        check_figure(plot)
    curves = [learning_curve(path) for path in runs]
    if plot is not None:
        write_panels(curve_panels(curves), plot)
    if as_json:
        typer.echo(json.dumps({history.name: history.table() for history in curves}))
        return
    console = Console()
    for history in curves:
        say(console, history.name)
        table = Table("round", history.metric, "training loss")
        for row in history.table():
            score, loss = row[history.metric], row["train_loss"]
            table.add_row(
                str(row["round"]),
                "" if score is None else f"{100 * score:.2f} %",
                "" if loss is None else f"{loss:.4f}",
            )
        console.print(table)
    if plot is not None:
        say(console, f"figure: {plot}")
