"""``hofl check``: is this run going to work, on which texts, and how long will it take?"""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import hofl
from hofl.data.encoding import EncodedSet
from hofl.experiment.build import Experiment, build
from hofl.experiment.check import Estimate, SetFacts, estimate, rendered, set_facts
from hofl.process import tune_allocator, use_threads

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
    settings = hofl.read_config(config, changes)
    tune_allocator()
    use_threads(settings.engine.threads, settings.engine.workers)
    experiment = build(settings)
    if experiment.note:
        console.print(f"note: {experiment.note}", style="yellow", markup=False, soft_wrap=True)
    train = _counted(console, "train", experiment.train)
    test = _counted(console, "test", experiment.test) if len(experiment.test) else None
    console.print(_table({"train": train, **({"test": test} if test else {})}))
    for prompt, answer in rendered(experiment.train):
        # Other people's text: never read it as markup.
        console.print(Panel(f"{escape(prompt)}[bold green] {escape(answer)}[/]", expand=False))
    for line in _lines(experiment, train, test, estimate(experiment, train, test or train)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _counted(console: Console, name: str, examples: EncodedSet) -> SetFacts:
    with Progress(
        TextColumn(f"encoding {name}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        shown = bar.add_task("", total=len(examples))
        return set_facts(examples, lambda done, of: bar.update(shown, completed=done))


def _table(sets: dict[str, SetFacts]) -> Table:
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


def _lines(
    experiment: Experiment, train: SetFacts, test: SetFacts | None, cost: Estimate
) -> list[str]:
    config: Any = experiment.config
    sizes = experiment.client.sizes
    lines = [
        f"task {config.task.name}, prompt {config.task.prompt!r}, at most "
        f"{config.task.max_length} tokens; partition {config.data.partition}: "
        f"{len(sizes)} clients with {min(sizes):,} to {max(sizes):,} training examples",
        f"training: {config.rounds} rounds x {config.fleet.cohort} clients x "
        f"{experiment.method.local.local_steps} steps, about {cost.tokens:,} tokens; one step took "
        f"{cost.step_seconds:.2f} s here, so about {duration(cost.train_seconds)}",
        f"evaluation: about {duration(cost.evaluation_seconds)}",
    ]
    cut = train.cut + (test.cut if test else 0)
    if cut:
        lines.append(
            f"{cut:,} texts are longer than task.max_length and lose their end; the place of the "
            "answer stays."
        )
    return lines


def duration(seconds: float) -> str:
    """A time for people: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
