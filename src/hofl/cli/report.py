"""``hofl report``: runs and comparisons as one page that opens anywhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hofl.cli.display import say
from hofl.core.sizes import show_bytes
from hofl.report.html import write_report

EXAMPLES = {
    "report": (
        "hofl report runs/three -o three.html",
        "hofl report runs/hofl runs/fedavg --title 'Two methods' -o report.html",
    )
}


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Runs, comparisons, or folders that hold runs.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, ending in .html.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="Of the page.")] = "",
) -> None:
    """Write one HTML file with curves, tables and the origin of every number.

    It opens from disk without a network.
    """
    write_report(folders, out, title)
    say(Console(), f"report: {out} ({show_bytes(out.stat().st_size)})")
