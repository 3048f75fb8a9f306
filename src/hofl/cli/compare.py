"""``hofl compare``: methods over seeds and a grid, in one table."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.cli.options import AsJson, Changes, OptionalSource, whole_numbers
from hofl.cli.tables import show_table
from hofl.core.errors import HoflError

if TYPE_CHECKING:
    from hofl.comparing.schedule import Progress
    from hofl.reporting.rows import Group

EXAMPLES = {
    "compare": (
        "hofl compare sst2 --methods hofl,fedavg,frozen-bottom --out runs/three",
        "hofl compare demo --methods hofl,recompute:uplink_bits=4 --out runs/b",
        "hofl compare my.toml --methods hofl --grid method.mu=1e-3,1e-2 --out runs/c",
        "hofl compare --resume runs/three",
    )
}


def compare(
    config: OptionalSource = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison.")] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; options follow colons.")
    ] = "hofl,fedavg,frozen-bottom",
    seeds: Annotated[
        str, typer.Option(help="How many, or the seeds themselves, at least two, by commas.")
    ] = "3",
    grid: Annotated[
        list[str] | None, typer.Option(help="key=value,value,...; can be repeated.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped comparison.")] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time (as many as memory allows).")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="Also show when this score was reached.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods over seeds: means, deviations, paired differences with intervals.

    Every cell is an ordinary run. Finished cells are skipped: the same command continues.
    """
    interrupts.check()
    console = Console(stderr=as_json)
    if resume is not None:
        if config is not None or out is not None:
            raise HoflError("--resume takes everything from the comparison: give nothing else.")
        groups = _resumed(console, resume, at_once)
    else:
        if config is None or out is None:
            raise HoflError("give a configuration and --out DIR, or --resume DIR (see --help).")
        run = hofl.read_config(config, changes)
        with interrupts.stoppable(console, out, "hofl compare", "comparison.toml"):
            groups = hofl.compare(
                run, out, methods.split(","), _seeds(seeds), _grid(grid or []), at_once,
                Lines(console),
            )  # fmt: skip
    if as_json:
        from hofl.reporting.tables import plain_table

        typer.echo(json.dumps(plain_table(groups, target)))
    else:
        show_table(console, groups, target)
        if any(row.chosen for group in groups for row in group.rows):
            say(console, "* of its method the least held-out loss; it is the one compared")


def _resumed(console: Console, path: Path, at_once: int | None) -> "list[Group]":
    from hofl.comparing.plan import Comparison
    from hofl.comparing.schedule import carry_out

    comparison = Comparison.open(path)
    with interrupts.stoppable(console, path, "hofl compare", "comparison.toml"):
        return carry_out(comparison, at_once, Lines(console))


class Lines:
    """Say what happens to cells: when they end, and how far the running ones are."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._console = console
        self._title = f"{title}: " if title else ""
        self._told: set[str] = set()
        self._before: Progress | None = None

    def __call__(self, progress: "Progress") -> None:
        """Take in how far the comparison is."""
        interrupts.check()
        ended = len(progress.done) + len(progress.failed)
        total = ended + len(progress.running) + len(progress.waiting)
        if self._before is None:
            # A mistaken number of seeds is seen before an hour has passed.
            before = f", of which {len(progress.done)} were finished before"
            say(self._console, f"{self._title}{total} cells{before if progress.done else ''}")
            self._told |= set(progress.done)
        for name in progress.done:
            self._tell(name, f"{name}: finished ({ended} of {total} cells)")
        for name, reason in progress.failed.items():
            self._tell(name, f"{name}: failed: {reason}", "red")
        for name, (rounds, of) in progress.running.items():
            step = max(1, of // 5)
            if rounds > 0 and rounds % step == 0 and rounds < of:
                self._tell(f"{name} {rounds}", f"{name}: round {rounds} of {of}")
        self._before = progress

    def _tell(self, key: str, line: str, style: str = "") -> None:
        if key not in self._told:
            self._told.add(key)
            say(self._console, self._title + line, style)


def _seeds(text: str) -> int | list[int]:
    numbers = whole_numbers("--seeds", text)
    return numbers if "," in text else numbers[0]


def _grid(items: list[str]) -> dict[str, list[str]]:
    """Read ``key=value,value``; commas inside brackets and quotes do not separate."""
    grid: dict[str, list[str]] = {}
    for item in items:
        key, separator, text = item.partition("=")
        if not separator or not key or not text:
            raise HoflError(f"--grid {item!r}: write key=value,value, such as method.mu=1e-3,1e-2.")
        if key in grid:
            raise HoflError(f"--grid {key} is given twice: list all its values once.")
        grid[key] = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|[^,])+", text)
        if ",".join(grid[key]) != text:
            raise HoflError(f"--grid {item!r}: a value between commas is empty.")
    return grid
