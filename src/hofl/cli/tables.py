"""A comparison on the terminal: scores with deviations and intervals, then what they cost."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.experiment.records import headline
from hofl.reporting.measures import MEASURES, Reached
from hofl.reporting.rows import Group, Row, Spread
from hofl.reporting.tables import LEVEL

COSTS = ("peak", "cohort", "uplink", "downlink", "compute", "seconds")
MORE = {"perplexity": (1, "", 2), "rouge_l": (100, " %", 2)}
"""Scores that only some tasks have: factor, unit and digits."""
SHOWN = 8
"""Differing keys that are named; more are counted."""


def show_table(console: Console, groups: Sequence[Group], target: float | None = None) -> None:
    """Print every group of comparable rows; what is not comparable is said, with the reason."""
    for number, group in enumerate(groups):
        if number:
            keys = list(group.differs)
            more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
            named = ", ".join(keys[:SHOWN])
            say(console, f"not comparable with the rows above ({named}{more} differ):", "yellow")
        console.print(_scores(group))
        console.print(_costs(group))
        if target is not None:
            console.print(_reached(group, target))
        for row in group.rows:
            for line, style in _missing(row):
                say(console, f"{row.label}, {line}", style)


def _missing(row: Row) -> Iterator[tuple[str, str]]:
    """Yield a line, and its style, on every cell that failed and on all that have not ended."""
    for cell in row.cells:
        if cell.state == "failed":
            yield f"seed {cell.seed}: failed: {cell.problem}", "red"
        elif cell.state == "unfinished":
            yield f"seed {cell.seed}: unfinished, {len(cell.records) - 1} rounds", "yellow"
    if seeds := [str(cell.seed) for cell in row.cells if cell.state == "not started"]:
        yield f"seed {', '.join(seeds)}: not started", "yellow"


def _table(*columns: str) -> Table:
    table = Table()
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _scores(group: Group) -> Table:
    metric = next((row.metric for row in group.rows if row.finished), "score").replace("_", " ")
    level = f"{100 * LEVEL:.0f} %"
    columns = ["method", "seeds", "before", metric, f"against {group.reference.label}, {level}"]
    held_out = any(row.held_out() is not None for row in group.rows)
    more = {key: form for key, form in MORE.items() if any(row.spread(key) for row in group.rows)}
    columns += ["loss", *(MEASURES[key].title for key in more)]
    table = _table(*columns, *(["held-out loss"] if held_out else []))
    for row in group.rows:
        cells = [_name(row), _seeds(row), _before(row), _spread(row.spread("score"), 100, " %")]
        cells += [_difference(row, group), _spread(row.spread("loss"), 1, "", 4)]
        cells += [_spread(row.spread(key), *form) for key, form in more.items()]
        if held_out:
            loss = row.held_out()
            cells.append("-" if loss is None else f"{loss:.4f}")
        table.add_row(*cells)
    return table


def _costs(group: Group) -> Table:
    table = _table("method", *(MEASURES[key].title for key in COSTS))
    for row in group.rows:
        spreads = [row.spread(key) for key in COSTS]
        shown = (
            "-" if spread is None else MEASURES[key].show(spread.mean)
            for key, spread in zip(COSTS, spreads, strict=True)
        )
        table.add_row(_name(row), *shown)
    return table


def _reached(group: Group, target: float) -> Table:
    """Return means over the seeds that reached the target, and how many did."""
    table = _table("method", f"reached {100 * target:g} %", "rounds", "uplink", "training time")
    for row in group.rows:
        moments = row.reached(target)
        there: list[Reached] = [moment for moment in moments if moment is not None]
        means = ["-"] * 3
        if there:
            count = len(there)
            means = [
                f"{sum(moment.rounds for moment in there) / count:.1f}",
                MEASURES["uplink"].show(sum(moment.uplink_bytes for moment in there) / count),
                MEASURES["seconds"].show(sum(moment.seconds for moment in there) / count),
            ]
        table.add_row(_name(row), f"{len(there)} of {len(moments)}", *means)
    return table


def _name(row: Row) -> str:
    return f"{row.label} *" if row.chosen else row.label


def _seeds(row: Row) -> str:
    done = len(row.finished)
    return str(done) if row.complete else f"{done} of {len(row.cells)}"


def _before(row: Row) -> str:
    firsts = [headline(cell.summary.initial)[1] for cell in row.finished if cell.summary]
    return _spread(Spread.of(firsts), 100, " %")


def _spread(spread: Spread | None, scale: float, unit: str, digits: int = 2) -> str:
    if spread is None:
        return "-"
    mean = f"{scale * spread.mean:.{digits}f}"
    if spread.deviation is None:
        return mean + unit
    return f"{mean} ({scale * spread.deviation:.{digits}f}){unit}"


def _difference(row: Row, group: Group) -> str:
    difference = row.against(group.reference) if row in group.standing else None
    if difference is None:
        return "-"
    low, high = difference.interval(LEVEL)
    return f"{100 * difference.mean:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
