"""``hofl check``: is this run going to work, on which texts, and how long will it take?"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import hofl

if TYPE_CHECKING:
    from hofl.experiment.check import Check, SetFacts

EXAMPLE = """Examples:

`hofl check demo`

`hofl check own.toml task.batch_size=8`
"""


def check(
    config: Annotated[str, typer.Argument(help="TOML file, or a recipe's name.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as method.lr=1e-3.")
    ] = None,
) -> None:
    """Check data, prompts, label words and sizes, and estimate tokens and time; writes nothing."""
    console = Console()
    found = _checked(console, hofl.read_config(config, changes))
    if found.note:
        console.print(f"note: {found.note}", style="yellow", markup=False, soft_wrap=True)
    console.print(_table(found.sets))
    for prompt, answer in found.rendered:
        # Other people's text: never read it as markup.
        console.print(Panel(f"{escape(prompt)}[bold green] {escape(answer)}[/]", expand=False))
    for line in _lines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _checked(console: Console, config: hofl.ExperimentConfig) -> "Check":
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} examples"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        shown = bar.add_task("loading", total=1)

        def progress(name: str, done: int, of: int) -> None:
            bar.update(shown, description=f"encoding {name}", completed=done, total=of)

        return hofl.check(config, progress)


def _table(sets: "dict[str, SetFacts]") -> Table:
    table = Table()
    table.add_column("set")
    for column in ("examples", "mean tokens", "longest", "cut", "by label"):
        table.add_column(column, justify="right")
    for name, facts in sets.items():
        labels = " / ".join(f"{count:,}" for count in facts.labels) or "-"
        table.add_row(
            name,
            f"{facts.examples:,}",
            f"{facts.mean_tokens:.1f}",
            str(facts.longest),
            f"{facts.cut:,}",
            labels,
        )
    return table


def _lines(found: "Check") -> list[str]:
    config, cost, sizes = found.config, found.cost, found.clients
    lines = [
        f"task {config.task.name}, prompt {config.task.prompt!r}, at most "
        f"{config.task.max_length} tokens; partition {config.data.partition}: "
        f"{len(sizes)} clients with {min(sizes):,} to {max(sizes):,} training examples",
        f"training: {config.rounds} rounds x {config.fleet.cohort} clients x "
        f"{config.method.local_steps} steps, about {cost.tokens:,} tokens; one step took "
        f"{cost.step_seconds:.2f} s here, so about {duration(cost.train_seconds)}",
        f"evaluation: about {duration(cost.evaluation_seconds)}",
    ]
    cut = sum(facts.cut for facts in found.sets.values())
    if cut:
        lines.append(
            f"{cut:,} texts are longer than task.max_length and lose their end; the place of the "
            "answer stays."
        )
    short = sum(facts.answers_cut for facts in found.sets.values())
    if short:
        lines.append(
            f"{short:,} answers are longer than may be generated and lose their end: a model can "
            "never match them. Raise max_new_tokens where the task has it."
        )
    return lines


def duration(seconds: float) -> str:
    """A time for people: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
