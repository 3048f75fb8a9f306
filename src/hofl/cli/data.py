"""``hofl data``: what a task holds, how a partition divides it, and what the model will read."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from hofl.cli.display import say
from hofl.cli.options import AsJson, Clients, Plot, Seed
from hofl.data.partition import PARTITIONS, Pool, split
from hofl.data.summary import SplitSummary, client_classes, partition_repeats, summarise
from hofl.data.task import Example, LabelWords, OwnOptions, Prompt, Task
from hofl.data.tasks import TASKS, load_task
from hofl.reporting.figures import Bars, check_figure, write_bars

EXAMPLES = {
    "data": (
        "hofl data sst2 --clients 30",
        "hofl data ag_news --partition dirichlet --alpha 0.1 --plot clients.html",
    )
}
SHOWN = 2  # rendered examples
LISTED = 100  # clients; --json always has all of them


def data(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder with the files; or set HOFL_DATA.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt variant to show.")] = None,
    partition: Annotated[str, typer.Option(help=f"One of {', '.join(PARTITIONS)}.")] = "iid",
    clients: Clients = 30,
    alpha: Annotated[float | None, typer.Option(help="Of dirichlet and quantity.")] = None,
    per_client: Annotated[
        int | None, typer.Option(help="Examples of each client (dirichlet).")
    ] = None,
    shards_per_client: Annotated[int | None, typer.Option(help="Of label-shards.")] = None,
    seed: Seed = 42,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show a task's counts, duplicates, clients and two of its prompts.

    The clients are those of a run with the same task, partition, number of clients and seed.
    """
    if plot is not None:
        check_figure(plot)
    loaded = load_task(task, directory)
    chosen = loaded.prompt(prompt)
    assert isinstance(chosen, Prompt), "built-in tasks have prompts"
    pool = Pool.of(loaded)
    options = {"alpha": alpha, "per_client": per_client, "shards_per_client": shards_per_client}
    shards = split(partition, pool, clients, seed, **options)
    table = _table_of(shards, pool, loaded)
    names = loaded.classes or ("examples",)
    if plot is not None:
        title = f"{loaded.name}, {partition}" + (f", alpha = {alpha:g}" if alpha else "")
        write_bars(Bars(title, "client", "examples", names, table.tolist()), plot)
    counts = summarise(loaded)
    if as_json:
        facts = _facts(loaded, counts, partition, table, shards)
        typer.echo(json.dumps(facts))
        return
    console = Console()
    if loaded.note:
        say(console, f"note: {loaded.note}", "yellow")
    console.print(_split_table(loaded, counts))
    console.print(_client_table(names, table) if clients <= LISTED else _spread(table))
    say(
        console,
        f"{partition}: {clients} clients hold {table.sum():,} examples out of {pool.size:,}, "
        f"{partition_repeats(shards):,} of them repeats.",
    )
    for example in loaded.train[:SHOWN]:
        console.print(_shown(chosen, example))
    if plot is not None:
        say(console, f"figure: {plot}")


def _table_of(shards: list[np.ndarray], pool: Pool, task: Task) -> np.ndarray:
    """Return examples by client and class, [N, C]; one column for a task without classes."""
    if pool.labels is None:
        return np.array([[len(shard)] for shard in shards])
    return client_classes(shards, pool.labels, len(task.classes))


def _facts(
    task: Task,
    counts: dict[str, SplitSummary],
    partition: str,
    table: np.ndarray,
    shards: list[np.ndarray],
) -> dict[str, Any]:
    return {
        "task": task.name,
        "note": task.note,
        "classes": list(task.classes),
        "splits": {name: vars(part) for name, part in counts.items()},
        "partition": partition,
        "clients": table.tolist(),
        "repeats": partition_repeats(shards),
    }


def _split_table(task: Task, counts: dict[str, SplitSummary]) -> Table:
    table = Table()
    table.add_column("split")
    for column in ("examples", *task.classes, "repeats", "in both"):
        table.add_column(column, justify="right")
    for name, summary in counts.items():
        cells = (summary.examples, *summary.classes, summary.repeats, summary.shared)
        table.add_row(name, *(f"{cell:,}" for cell in cells))
    return table


def _client_table(names: tuple[str, ...], counts: np.ndarray) -> Table:
    table = Table()
    for column in ("client", *names, *(("all",) if len(names) > 1 else ())):
        table.add_column(column, justify="right")
    for client, row in enumerate(counts.tolist()):
        cells = [*row, sum(row)] if len(names) > 1 else row
        table.add_row(str(client), *(f"{cell:,}" for cell in cells))
    return table


def _spread(counts: np.ndarray) -> str:
    sizes = counts.sum(1)
    return (
        f"{len(sizes)} clients of {sizes.min():,} to {sizes.max():,} examples: --json lists each "
        "of them."
    )


def _shown(prompt: Prompt, example: Example) -> Panel:
    """Return a prompt as the model reads it, and its answer."""
    match prompt.answer:
        case LabelWords(words):
            answer = words[example.label]
        case OwnOptions():
            answer = example.options[example.label]
        case _:
            answer = example.golds[0]
    text = f"{escape(prompt.render(example.fields))}[green] {escape(answer)}[/green]"
    return Panel(text, title="prompt and answer", title_align="left")
