"""``hofl report``: runs and comparisons as one page that opens anywhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli.display import say
from hofl.core.sizes import show_bytes

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
    written = hofl.report(folders, out, title)
    say(Console(), f"report: {written} ({show_bytes(written.stat().st_size)})")
