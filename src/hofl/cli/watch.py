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
    for column in ("round", "score", "", "training loss", "", "left"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for standing in standings:
        scores, losses = _scores(standing), _losses(standing)
        bar = ProgressBar(
            total=max(standing.cell.rounds, 1), completed=standing.rounds, width=width
        )
        state = Text(standing.state, STYLES.get(standing.state, ""))
        left = Text("" if standing.left is None else duration(standing.left))
        table.add_row(
            Text(standing.name),
            bar,
            f"{standing.rounds}/{standing.cell.rounds or '?'}",
            f"{100 * scores[-1]:.1f} %" if scores else "",
            small_curve(scores, heights, width),
            f"{losses[-1]:.4f}" if losses else "",
            small_curve(losses, heights, width),
            left if standing.state == "running" else state,
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
    for standing in standings:
        parts = [f"round {standing.rounds} of {standing.cell.rounds or '?'}"]
        if standing.state != "running":
            parts = [standing.state, *(parts if standing.state == "stopped" else [])]
        if scores := _scores(standing):
            name = headline(next(r for r in reversed(standing.cell.records) if r.scores).scores)[0]
            parts.append(f"{name.replace('_', ' ')} {100 * scores[-1]:.1f} %")
        if losses := _losses(standing):
            parts.append(f"training loss {losses[-1]:.4f}")
        if standing.state == "running" and standing.left is not None:
            parts.append(f"about {duration(standing.left)} left")
        yield f"{standing.name}: {', '.join(parts)}", STYLES.get(standing.state, "")
    yield from _reasons(standings)
    yield from _total(standings)


def _reasons(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield why runs failed or stopped."""
    for standing in standings:
        if standing.state == "failed":
            yield f"{standing.name} failed: {standing.reason}", "red"
        elif standing.state == "stopped":
            why = f": {standing.reason}" if standing.reason else ""
            resume = f"; resume with hofl run --resume {standing.cell.path}"
            again = "" if standing.cell.label else resume
            yield f"{standing.name} is stopped{why}{again}", "yellow"


def _total(standings: Sequence[Standing]) -> Iterator[tuple[str, str]]:
    """Yield how far several runs are together."""
    if len(standings) > 1:
        counts = Counter(standing.state for standing in standings)
        left = all_left(standings)
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{summary}{'' if left is None else f'; about {duration(left)} left'}", "bold"


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


def _scores(standing: Standing) -> list[float]:
    return [headline(record.scores)[1] for record in standing.cell.records if record.scores]


def _losses(standing: Standing) -> list[float]:
    return [r.train_loss for r in standing.cell.records if r.train_loss is not None]
