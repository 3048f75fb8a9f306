"""``hofl check``: is this run going to work, on which texts, and how long will it take?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

import hofl
from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.cli.options import Changes, Source
from hofl.core.sizes import show_bytes

if TYPE_CHECKING:
    from hofl.experiment.check import Check, Piece, SetFacts
    from hofl.experiment.tiers import TierFacts

EXAMPLES = {"check": ("hofl check demo", "hofl check own.toml task.batch_size=8")}


def check(config: Source, changes: Changes = None) -> None:
    """Check data, prompts, label words and sizes, and estimate tokens and time; write nothing."""
    console = Console()
    report = _checked(console, hofl.read_config(config, changes))
    if report.note:
        say(console, f"note: {report.note}", "yellow")
    console.print(_table(report.sets))
    for pieces in report.rendered:
        console.print(_shown(pieces, plain=console.color_system is None))
    console.print(_devices(report.tiers))
    for line in _lines(report):
        say(console, line)
    if report.seen:
        of = report.sets["test"].examples
        say(
            console,
            f"warning: {report.seen:,} of {of:,} test examples are also training examples, so the "
            "score says little about new texts. Keep some rows for the test file alone.",
            "yellow",
        )


def _shown(pieces: "tuple[Piece, ...]", *, plain: bool) -> Panel:
    """Return an example with its trained pieces marked: in green, or in brackets without colour."""
    shown = Text()  # other people's text: never read as markup
    for piece, trained in pieces:
        text = f"\u27e6{piece}\u27e7" if trained and plain else piece
        shown.append(text, "bold green" if trained else "")
    title = "trained: in \u27e6 \u27e7" if plain else "trained: green"
    return Panel(shown, title=title, title_align="left", expand=False)


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
            interrupts.check()
            bar.update(shown, description=f"encoding {name}", completed=done, total=of)

        from hofl.experiment.check import check  # takes seconds

        interrupts.check()
        return check(config, progress)


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


def _devices(tiers: "Sequence[TierFacts]") -> Table:
    """Return every kind of device: what it runs, and what that takes."""
    table = Table()
    table.add_column("devices")
    table.add_column("runs")
    for column in ("peak", "of", "a round", "uplink"):
        table.add_column(column, justify="right")
    for tier in tiers:
        peak = show_bytes(tier.cost.peak_bytes)
        table.add_row(
            f"{tier.clients} x {tier.name}",
            tier.cost.describe(),
            f"{peak} + {show_bytes(tier.headroom)}",
            "-" if tier.budget is None else show_bytes(tier.budget),
            duration(tier.seconds),
            show_bytes(tier.cost.uplink_bytes),
        )
    return table


def _lines(report: "Check") -> list[str]:
    config, cost, sizes = report.config, report.cost, report.clients
    lines = [
        f"task {config.task.name}, prompt {config.task.prompt!r}, at most "
        f"{config.task.max_length} tokens; partition {config.data.partition}: "
        f"{len(sizes)} clients with {min(sizes):,} to {max(sizes):,} training examples",
        f"training: {config.rounds} rounds x {config.fleet.cohort} clients x "
        f"{config.method.local_steps} steps, about {cost.tokens:,} tokens; one step took "
        f"{cost.step_seconds:.2f} s here, so about {duration(cost.train_seconds)}",
        f"evaluation: about {duration(cost.evaluation_seconds)}",
    ]
    cut = sum(facts.cut for facts in report.sets.values())
    lost = sum(facts.cut_tokens for facts in report.sets.values())
    if cut:
        lines.append(
            f"{cut:,} texts are longer than task.max_length and lose their end, {lost:,} tokens in "
            "all; the start of the answer stays."
        )
    short = sum(facts.answers_cut for facts in report.sets.values())
    if short:
        lines.append(
            f"{short:,} answers are longer than may be generated and lose their end: a model can "
            "never match them. Raise max_new_tokens where the task has it."
        )
    return lines


def duration(seconds: float) -> str:
    """Write a time for people: 45 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
