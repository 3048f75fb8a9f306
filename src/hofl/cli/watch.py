"""``hofl watch``: how far runs are, on the terminal or live in a browser of this machine."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hofl.cli import interrupts
from hofl.cli.check import duration
from hofl.cli.display import say
from hofl.experiment.records import headline
from hofl.watching.folder import Watched
from hofl.watching.progress import Standing, all_left, is_over
from hofl.watching.serving import LiveServer

EXAMPLES = {
    "watch": (
        "hofl watch runs/three",
        "hofl watch runs/three --serve",
        "hofl watch runs/hofl runs/fedavg --serve --port 8080",
    )
}
PAUSE = 1.0
"""Seconds between looks at the folders."""
STYLES = {"finished": "green", "failed": "red", "stopped": "yellow", "waiting": "dim"}
HEIGHTS, PLAIN_HEIGHTS = "▁▂▃▄▅▆▇█", "_.-=*#"
WIDTH, NARROW, ROOMY = 16, 8, 100
"""Characters of a bar and of a small curve; on terminals of fewer columns than the last, NARROW."""


def watch(
    folders: Annotated[
        list[Path], typer.Argument(help="Runs, comparisons, or folders that hold runs.")
    ],
    serve: Annotated[bool, typer.Option("--serve", help="As a page on 127.0.0.1.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 is a free one.")] = 0,
) -> None:
    """Show how far runs are and how long they will take, until all have ended or Ctrl-C.

    Where the output is not a terminal: once, as lines. Runs are only read.
    """
    watched = Watched(folders)
    console = Console()
    try:
        if serve:
            _serve(console, watched, port)
        elif console.is_terminal:
            _follow(console, watched)
        else:
            for line, style in lines(watched.standings(time.time())):
                say(console, line, style)
    except KeyboardInterrupt:
        say(console, "watching has ended; the runs are not affected")


def _serve(console: Console, watched: Watched, port: int) -> None:
    with LiveServer(watched, port) as server:
        say(console, f"live report: {server.url}")
        say(console, "for browsers of this machine that know the address; Ctrl-C ends it")
        interrupts.check()
        server.serve_forever()


def _follow(console: Console, watched: Watched) -> None:
    """Redraw until everything has ended."""
    standings = watched.standings(time.time())
    with Live(view(standings, console), console=console, auto_refresh=False) as live:
        while not is_over(standings):
            time.sleep(PAUSE)
            interrupts.check()
            standings = watched.standings(time.time())
            live.update(view(standings, console), refresh=True)


def view(standings: Sequence[Standing], console: Console) -> RenderableType:
    """Return all runs as a table that fits the console, with the total above and reasons below."""
    heights = PLAIN_HEIGHTS if console.options.ascii_only else HEIGHTS
    width = WIDTH if console.width >= ROOMY else NARROW
    table = Table(box=None, padding=(0, 1), expand=False)
    table.add_column("run", overflow="fold")
    table.add_column("", width=width)
    for column in ("round", "score", "", "loss", "", "left"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for one in standings:
        scores, losses = _scores(one), _losses(one)
        bar = ProgressBar(total=max(one.cell.rounds, 1), completed=one.rounds, width=width)
        state = Text(one.state, STYLES.get(one.state, ""))
        left = Text("" if one.left is None else duration(one.left))
        table.add_row(
            Text(one.name),
            bar,
            f"{one.rounds}/{one.cell.rounds or '?'}",
            f"{100 * scores[-1]:.1f} %" if scores else "",
            small_curve(scores, heights, width),
            f"{losses[-1]:.4f}" if losses else "",
            small_curve(losses, heights, width),
            left if one.state == "running" else state,
        )
    # What concerns all comes first: of a table that is longer than the screen, the end is cut off.
    if not standings:
        return Text("no run here yet; waiting for one", "dim")
    above, below = ([Text(*line) for line in part(standings)] for part in (_total, _reasons))
    return Group(*above, table, *below)


def lines(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield one line per run, and its style, then those that concern all."""
    if not standings:
        yield "no run here yet", ""
    for one in standings:
        parts = [f"round {one.rounds} of {one.cell.rounds or '?'}"]
        if one.state != "running":
            parts = [one.state, *(parts if one.state == "stopped" else [])]
        if scores := _scores(one):
            name = headline(next(r for r in reversed(one.cell.records) if r.scores).scores)[0]
            parts.append(f"{name.replace('_', ' ')} {100 * scores[-1]:.1f} %")
        if losses := _losses(one):
            parts.append(f"loss {losses[-1]:.4f}")
        if one.state == "running" and one.left is not None:
            parts.append(f"about {duration(one.left)} left")
        yield f"{one.name}: {', '.join(parts)}", STYLES.get(one.state, "")
    yield from _reasons(standings)
    yield from _total(standings)


def _reasons(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield why runs failed or stopped."""
    for one in standings:
        if one.state == "failed":
            yield f"{one.name} failed: {one.reason}", "red"
        elif one.state == "stopped":
            why = f": {one.reason}" if one.reason else ""
            again = "" if one.cell.label else f"; resume with hofl run --resume {one.cell.path}"
            yield f"{one.name} is stopped{why}{again}", "yellow"


def _total(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield how far several runs are together."""
    if len(standings) > 1:
        counts = Counter(one.state for one in standings)
        left = all_left(standings)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{told}{'' if left is None else f'; about {duration(left)} left'}", "bold"


def small_curve(values: Sequence[float], heights: str = HEIGHTS, width: int = WIDTH) -> str:
    """Return a curve as one character per value, or per equal share of many values.

    >>> small_curve([0.0, 0.5, 1.0]), small_curve([2.0, 2.0]), small_curve([])
    ('▁▅█', '▁▁', '')
    """
    count = min(len(values), width)
    picked = [values[(k + 1) * len(values) // count - 1] for k in range(count)]
    low, high = min(picked, default=0.0), max(picked, default=0.0)
    step = (high - low) / (len(heights) - 1) or 1.0
    return "".join(heights[int((value - low) / step + 0.5)] for value in picked)


def _scores(one: Standing) -> list[float]:
    return [headline(record.scores)[1] for record in one.cell.records if record.scores]


def _losses(one: Standing) -> list[float]:
    return [r.train_loss for r in one.cell.records if r.train_loss is not None]
