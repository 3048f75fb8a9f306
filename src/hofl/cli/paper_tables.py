"""The paper's recipes on the terminal: settings, reported numbers, computed ones beside them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.paper.describe import BF16_NOTE, settings_of
from hofl.paper.numbers import MEMORY, STRUCTURE, Reported
from hofl.paper.settings import MODELS
from hofl.paper.studies import Block, PaperTable

if TYPE_CHECKING:  # planning memory loads the model libraries
    from hofl.paper.computed import MemoryFigure, ModelTiers, Structure
    from hofl.paper.outcome import Outcome

MEANING = {
    ("evaluation.examples", 0): " (the whole test set)",
    ("evaluation.every", 0): " (start and end)",
}
QUIET_KEYS = ("server.", "privacy.", "engine.")
"""Sections whose values are this package's defaults: the paper says nothing about them."""
STRUCTURE_COLUMNS = ("paradigm", "boundaries", "activation uploads", "local steps")


def table(*columns: str, title: str = "") -> Table:
    """Return a table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left")
    made.add_column(columns[0])
    for column in columns[1:]:
        made.add_column(column, justify="right")
    return made


def reported(value: Reported, metric: str) -> str:
    """Write a number of the paper: a mean, and its deviation where there is one."""
    digits = 4 if metric == "loss" else 2
    mean, deviation = value
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ({deviation:.{digits}f})")


def show_study(console: Console, study: PaperTable, blocks: Sequence[Block]) -> None:
    """Print the exact settings of a study, and the paper's numbers."""
    settings = settings_of(blocks)
    say(console, f"{study.title} (the paper's {study.place})", "bold")
    say(console, "\nAll runs:")
    for key, value in settings.common.items():
        if not key.startswith(QUIET_KEYS) and value not in ((), []):
            say(console, f"  {key} = {shown(value)}{MEANING.get((key, value), '')}")
    seeds = sorted({block.seeds for block in blocks})
    say(console, f"  seeds: {', '.join(str(list(group)) for group in seeds)}")
    own_settings = _own(settings.varied, blocks)
    say(console, "\nEach setting:")
    for name, values, _ in own_settings:
        say(console, f"  {name}: {_listed(values)}")
    say(console, "\nEach column:")
    for label, values in own_settings[0][2].items():
        say(console, f"  {label}: {_listed(values)}")
    console.print()
    console.print(numbers_table(blocks))
    if any("bfloat16" in str(block.base.model.compute_dtype) for block in blocks):
        say(console, f"note: {BF16_NOTE}", "yellow")
    say(console, f"note: {study.note}", "yellow")


def _own(
    varied: Mapping[tuple[str, str], Mapping[str, Any]], blocks: Sequence[Block]
) -> list[tuple[str, dict[str, Any], dict[str, dict[str, Any]]]]:
    """Return, for each block, what its runs share and what each column adds.

    Columns are the same in all blocks of a study.
    """
    lines = []
    for block in blocks:
        mine = {label: dict(varied[block.name, label]) for label in block.paper}
        first = next(iter(mine.values()))
        differing = {
            key: value
            for key, value in first.items()
            if all(key in other and other[key] == value for other in mine.values())
        }
        columns = {
            label: {key: value for key, value in values.items() if key not in differing}
            for label, values in mine.items()
        }
        lines.append((block.name, differing, columns))
    return lines


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {shown(value)}" for key, value in values.items()) or "as above"


def shown(value: Any) -> str:
    """Write a value of a configuration as TOML does, small numbers short."""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def numbers_table(blocks: Sequence[Block]) -> Table:
    """Return what the paper reports, mean (sample SD); with one setting its columns as rows."""
    metrics = {m: m if m == "loss" else f"{m}, %" for m in next(iter(blocks[0].paper.values()))}
    if len(blocks) == 1:
        made = table(f"the paper: {blocks[0].name}", *metrics.values())
        for label, values in blocks[0].paper.items():
            made.add_row(label, *(reported(values[metric], metric) for metric in metrics))
        return made
    labels = list(blocks[0].paper)
    heads = [label.replace("(beta =", "beta").removesuffix(")") for label in labels]
    only = next(iter(metrics.values())) if len(metrics) == 1 else ""
    made = table(f"the paper: {only}" if only else "the paper", *heads)
    made.columns[0].no_wrap = True
    before = ""
    for block in blocks:
        if block.model != before:
            made.add_section()
            made.add_row(block.model, style="bold")
            before = block.model
        task = block.name.removeprefix(f"{block.model}, ")
        for metric, title in metrics.items():
            name = task if only else f"{task}, {title}"
            made.add_row(name, *(reported(block.paper[n][metric], metric) for n in labels))
    return made


def show_tiers(console: Console, computed: "Sequence[ModelTiers] | None") -> None:
    """Print the boundary tiers; without computed ones the paper's alone."""
    if computed is None:
        made = table("model", "L", "T1", "T2", "T3")
        for name, model in MODELS.items():
            made.add_row(name, str(model.blocks), *map(str, model.tiers))
        console.print(made)
        return
    made = table("model", "L", "here", "boundary", "of L", "d_ZO", "clients", "peak, GiB")
    made.columns[0].no_wrap = True
    for row in computed:
        for tier, clients in zip(row.tiers, row.clients, strict=True):
            heads = [row.model, *map(str, row.blocks)] if tier is row.tiers[0] else ["", "", ""]
            share = f"{tier.boundary / row.blocks[1]:.0%}"
            values = (str(tier.boundary), share, f"{tier.zo_params:,}", str(clients))
            made.add_row(*heads, *values, f"{tier.peak:.2f}")
    console.print(made)
    say(
        console,
        "L and boundary: the paper's; here: blocks by the model's configuration. peak: of one "
        "device, planned for batch 16 and length 1024; d_ZO with LoRA of rank 8.",
    )


def show_memory(console: Console, figure: "MemoryFigure | None") -> None:
    """Print the memory figure's numbers, both panels."""
    if figure is None:
        made = table("Qwen2.5-1.5B, batch 16, length 1024", "the paper, GiB")
        for what, value in MEMORY.items():
            made.add_row(what, f"{value:.2f}")
        console.print(made)
        return
    made = table("Qwen2.5-1.5B, GiB", "paper, measured", "planned here", "deviation")
    for row in figure.beside:
        made.add_row(row.what, f"{row.paper:.2f}", f"{row.here:.2f}", f"{row.deviation:+.1%}")
    console.print(made)
    left = table("device, b =", *map(str, _few(figure)))
    left.columns[0].no_wrap = True
    left.add_row("HO-FL, GiB", *(f"{figure.peaks[b]:.2f}" for b in _few(figure)))
    console.print(left)
    right = table("cohort of a round", "drawn, GiB", "expected, GiB")
    for demand in figure.demands:
        right.add_row(
            demand.name, f"{demand.simulated / 2**30:.2f}", f"{demand.expected / 2**30:.2f}"
        )
    console.print(right)
    say(console, f"DeComFL needs {figure.pure:.2f} GiB on one device; b = 0 is FedAvg.")


def _few(figure: "MemoryFigure") -> range:
    return range(0, len(figure.peaks), 4)


def show_structure(console: Console, rows: "Sequence[Structure] | None") -> None:
    """Print the structural comparison."""
    if rows is None:
        made = table("method", *STRUCTURE_COLUMNS, title="the paper")
        for name, texts in STRUCTURE.items():
            made.add_row(name, *texts)
        console.print(made)
        return
    made = table("method", "boundaries", "here", "uploads", "crossings", "local steps", "E here")
    for column in made.columns:
        column.justify = "left"
    for row in rows:
        _, boundaries, uploads, steps = row.paper
        numbers = (str(row.crossings), steps, str(row.local_steps))
        made.add_row(row.method, boundaries, row.boundaries, uploads, *numbers)
    console.print(made)
    say(
        console,
        "Boundaries, uploads of activations and local steps are the paper's. A crossing is an "
        "activation that passes from the bottom to the top: an upload in split learning, while "
        "here every method runs whole on the device and uploads no activation.",
    )


def show_outcomes(console: Console, outcomes: "Sequence[Outcome]", scaled: bool) -> None:
    """Print numbers of runs beside the paper's; what is not finished stays empty."""
    for name in dict.fromkeys(outcome.block for outcome in outcomes):
        mark = "*" if scaled else ""
        made = table("column", "metric", "paper", f"here{mark}", "apart", "finished", title=name)
        made.columns[1].justify = "left"
        for outcome in outcomes:
            if outcome.block == name:
                made.add_row(outcome.arm, outcome.metric, *_beside(outcome), outcome.state)
        console.print(made)
    if scaled:
        say(
            console,
            "* scaled: smaller runs than the paper's, as listed above. They say how methods "
            "compare here, not whether the paper's numbers hold.",
            "yellow",
        )


def _beside(outcome: "Outcome") -> tuple[str, str, str]:
    """Return the paper's number, ours, and the difference."""
    paper = reported(outcome.paper, outcome.metric)
    if outcome.here is None:
        return paper, "-", "-"
    digits = 4 if outcome.metric == "loss" else 2
    mine = reported((outcome.here.mean, outcome.here.deviation), outcome.metric)
    return paper, mine, f"{outcome.here.mean - outcome.paper[0]:+.{digits}f}"
