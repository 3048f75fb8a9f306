"""``hofl paper``: the paper's tables and figures, their settings and numbers, and runs of them."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hofl.cli import interrupts
from hofl.cli.check import duration
from hofl.cli.compare import Lines
from hofl.cli.display import say
from hofl.cli.options import AsJson, seconds_of, whole_numbers
from hofl.cli.paper_tables import (
    show_memory,
    show_outcomes,
    show_structure,
    show_study,
    show_tiers,
    table,
)
from hofl.core.errors import HoflError
from hofl.paper.describe import BF16_NOTE, facts_of
from hofl.paper.estimate import operations, speed
from hofl.paper.numbers import MEMORY, STRUCTURE
from hofl.paper.settings import MODELS
from hofl.paper.studies import STUDIES

if TYPE_CHECKING:
    from hofl.paper.running import Work

EXAMPLES = {
    "paper": (
        "hofl paper",
        "hofl paper language-tasks --show",
        "hofl paper memory",
        "hofl paper ablations --budget 30min --model smollm2-135m-instruct --out runs/e",
        "hofl paper --resume runs/e",
    )
}


@dataclass(frozen=True)
class Computed:
    """A recipe without training.

    Args:
        title: what it shows.
        place: where it stands in the paper.
        compute: computes it with ``hofl.paper.computed``, which loads the model libraries.
        show: prints it, or the paper's own values.
        paper: those values.
        note: what of it this project has run.
    """

    title: str
    place: str
    compute: Callable[[ModuleType], Any]
    show: Callable[[Console, Any], None]
    paper: Any
    note: str


COMPUTED = {
    "tiers": Computed(
        "boundary tiers",
        "section 5.1",
        lambda module: module.tiers(),
        show_tiers,
        {name: asdict(model) for name, model in MODELS.items()},
        "hofl paper tiers computes sizes and peaks from the models' configurations: this project "
        "measured nothing at that scale.",
    ),
    "memory": Computed(
        "memory of a device and a cohort",
        "section 5.2",
        lambda module: module.memory(),
        show_memory,
        MEMORY,
        "The paper measured on GPUs. hofl paper memory computes from the model's configuration: "
        "this project measured nothing at that scale.",
    ),
    "structure": Computed(
        "structural comparison",
        "appendix A",
        lambda module: module.structure(),
        show_structure,
        STRUCTURE,
        "hofl paper structure reads the methods of this package: this project ran none of them at "
        "the paper's scale.",
    ),
}
NAMES = (
    "tiers", "language-tasks", "squad", "memory", "beta-alpha", "iid-beta", "squad-beta",
    "ablations", "structure",
)  # fmt: skip
"""All recipes, in the paper's order."""


def paper(
    name: Annotated[str | None, typer.Argument(help="A recipe; without it all are listed.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print settings and the paper's numbers; run nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Run a smaller version in this time, such as 30min or 2h.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --budget: train this model in place of the paper's.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time (as many as memory allows).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped recipe.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the paper's tables and figures, show their exact settings, compute or run them.

    A recipe runs in the paper's own setting, or with --budget in the largest version that fits:
    every number of that is marked as scaled. Every run is an ordinary one, finished runs are kept.
    """
    interrupts.check()
    console = Console(stderr=as_json)
    if name is not None and name not in NAMES:
        raise HoflError(f"unknown recipe {name!r}: choose one of {', '.join(NAMES)}.")
    if resume is not None:
        if any(given is not None for given in (name, out, budget, model, seeds)) or show:
            raise HoflError("--resume takes everything from the folder: give nothing else.")
        from hofl.paper.running import Work

        _run(console, Work.open(resume), at_once, as_json)
    elif name is None:
        _list(console, as_json)
    elif name in COMPUTED:
        _compute(console, name, show, as_json)
    elif show:
        _show(console, name, as_json)
    else:
        _start(console, name, out, budget, model, seeds, at_once, as_json)


def _list(console: Console, as_json: bool) -> None:
    """List all recipes with what they would take here."""
    per_second = speed()
    costs = {
        name: sum(map(operations, study.blocks())) / per_second for name, study in STUDIES.items()
    }
    if as_json:
        typer.echo(json.dumps({"operations_per_second": per_second, "seconds": costs}))
        return
    made = table("recipe", "shows", "paper", "runs", "here, at least")
    made.columns[1].justify = made.columns[2].justify = "left"
    for name in NAMES:
        if name in COMPUTED:
            made.add_row(name, COMPUTED[name].title, COMPUTED[name].place, "-", "seconds")
            continue
        study = STUDIES[name]
        runs = sum(len(block.arms) * len(block.seeds) for block in study.blocks())
        made.add_row(name, study.title, study.place, str(runs), _long(costs[name]))
    console.print(made)
    say(
        console,
        f"Times are computed, not measured: operations of block weights at "
        f"{per_second / 1e9:.0f} GFLOP/s, which an FP32 matrix product reached here just now. "
        "--budget measures real runs instead.",
    )
    say(console, "The trained recipes were not run at the paper's scale here: they want a GPU.")


def _long(seconds: float) -> str:
    return duration(seconds) if seconds < 2 * 86400 else f"{seconds / 86400:,.0f} days"


def _compute(console: Console, name: str, show: bool, as_json: bool) -> None:
    recipe, values = COMPUTED[name], None
    if not show:
        from hofl.paper import computed  # takes seconds

        interrupts.check()
        values = recipe.compute(computed)
    if as_json:
        here = None if values is None else plain(values)
        typer.echo(json.dumps({"recipe": name, "paper": recipe.paper, "here": here}))
        return
    say(console, f"{recipe.title} (the paper's {recipe.place})", "bold")
    recipe.show(console, values)
    say(console, f"note: {recipe.note}", "yellow")


def plain(values: Any) -> Any:
    """Return what was computed as plain values."""
    return [asdict(entry) for entry in values] if isinstance(values, list) else asdict(values)


def _show(console: Console, name: str, as_json: bool) -> None:
    blocks = STUDIES[name].blocks()
    if as_json:
        typer.echo(json.dumps({"recipe": name, "runs": facts_of(blocks)}))
    else:
        show_study(console, STUDIES[name], blocks)


def _start(
    console: Console,
    name: str,
    out: Path | None,
    budget: str | None,
    model: str | None,
    seeds: str | None,
    at_once: int | None,
    as_json: bool,
) -> None:
    """Begin a recipe in a new folder."""
    if out is None:
        raise HoflError("give --out DIR for the runs, or --show to see settings and numbers.")
    if model is not None and budget is None:
        raise HoflError("--model makes a scaled version: give a --budget, such as 30min.")
    chosen = None if seeds is None else _distinct(whole_numbers("--seeds", seeds))
    began = time.monotonic()
    from hofl.experiment.launch import readable_errors
    from hofl.paper.running import paper_work, scaled_work

    if budget is None:
        work = paper_work(name, out, chosen)
    else:
        seconds = seconds_of("--budget", budget)
        with interrupts.stoppable(console, out, "hofl paper", "paper.json"):
            work = scaled_work(
                name, out, seconds, model, chosen, at_once, began,
                lambda line: say(console, line), lambda progress: interrupts.check(),
            )  # fmt: skip
    with readable_errors(out):
        work.write()
    if budget is None:
        say(console, f"warning: {BF16_NOTE}", "yellow")
    _run(console, work, at_once, as_json, began)


def _distinct(seeds: Sequence[int]) -> list[int]:
    if len(set(seeds)) != len(seeds):
        raise HoflError(f"--seeds {','.join(map(str, seeds))}: give every seed once.")
    return list(seeds)


def _run(
    console: Console, work: "Work", at_once: int | None, as_json: bool, began: float | None = None
) -> None:
    from hofl.paper.outcome import outcomes, plain_outcomes
    from hofl.paper.running import LATEST, carry, folder_of

    if work.reduced:
        say(console, "scaled: what is not as in the paper", "yellow")
        for line in work.reduced:
            say(console, f"  {line}", "yellow")
    start = time.monotonic() if began is None else began
    until = None if work.budget is None else start + LATEST * work.budget
    with interrupts.stoppable(console, work.path, "hofl paper", "paper.json"):
        whole = carry(work, at_once, partial(Lines, console), until)
    results = [outcome for b in work.blocks for outcome in outcomes(b, folder_of(work.path, b))]
    if as_json:
        facts = {"recipe": work.recipe, "scaled": list(work.reduced)}
        typer.echo(json.dumps({**facts, "numbers": plain_outcomes(results)}))
        return
    show_outcomes(console, results, bool(work.reduced))
    spent = f"after {duration(time.monotonic() - start)}"
    if work.budget is not None:
        spent += f" of {duration(work.budget)}"
    if not whole:
        say(console, f"the time is up; resume with: hofl paper --resume {work.path}", "yellow")
    say(console, f"{spent}; a page of it: hofl report {work.path} -o report.html")
