"""``hofl curve``: how runs went, round by round."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hofl.report.files import check_figure

EXAMPLE = """Examples:

`hofl curve runs/sst2`

`hofl curve runs/hofl runs/fedavg --plot curves.html`
"""


def curve(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Annotated[Path | None, typer.Option(help="Figure: .html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show the scores and training losses of runs, finished or running."""
    from hofl.report import curves as report  # reads runs, which loads the model libraries
    from hofl.report.panels import write_panels

    if plot is not None:
        check_figure(plot)
    found = [report.curve(path) for path in runs]
    if plot is not None:
        write_panels(report.panels(found), plot)
    if as_json:
        typer.echo(json.dumps({one.name: report.table(one) for one in found}))
        return
    console = Console()
    for one in found:
        table = Table("round", one.metric, "training loss", title=one.name, title_justify="left")
        for row in report.table(one):
            score, loss = row[one.metric], row["train_loss"]
            table.add_row(
                str(row["round"]),
                "" if score is None else f"{100 * score:.2f} %",
                "" if loss is None else f"{loss:.4f}",
            )
        console.print(table)
    if plot is not None:
        console.print(f"figure: {plot}", markup=False, highlight=False, soft_wrap=True)
