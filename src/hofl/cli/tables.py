"""A comparison on the terminal: scores with deviations and intervals, then what they cost."""

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hofl.cli.display import say
from hofl.experiment.records import headline
from hofl.reporting.measures import MEASURES, Reached
from hofl.reporting.rows import Group, Row, Spread
from hofl.reporting.tables import LEVEL, plain_difference

COSTS = ("peak", "cohort", "uplink", "downlink", "compute", "seconds")
MORE = {"perplexity": (1, "", 2), "rouge_l": (100, " %", 2)}
"""Scores that only some tasks have: factor, unit and digits."""
Cells = tuple[list[str], list[list[str]]]
"""Heads of columns, and rows."""
GAP, NARROWEST = 2, 8
"""Characters between columns, and of the narrowest column of labels."""
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
        if group.name:
            say(console, group.name, "bold")
        _print(console, *_scores(group))
        if len(group.standing) > 1:
            say(console, f"apart: from {group.reference.label}, paired by seed")
        _print(console, *_costs(group))
        if target is not None:
            _print(console, *_reached(group, target))
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


def _print(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where its lines must break, they break between words and cut no number."""
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    texts = [[*column] for column in zip(columns, *rows, strict=True)]
    if sum(max(map(len, column)) + GAP for column in texts) > console.width:
        words = [max(len(word) for text in column for word in text.split()) for column in texts]
        for column, width in zip(table.columns[1:], words[1:], strict=True):
            column.width = width
        room = console.width - sum(words[1:]) - GAP * len(texts)
        table.columns[0].width = max(min(max(map(len, texts[0])), room), NARROWEST)
        table.columns[0].overflow = "fold"
    console.print(table)


def _scores(group: Group) -> Cells:
    metric = next((row.metric for row in group.rows if row.finished), "score").replace("_", " ")
    columns = ["method", "seeds", "before, %", f"{metric}, %", f"apart, {100 * LEVEL:.0f} %"]
    held_out = any(row.held_out() is not None for row in group.rows)
    more = {key: form for key, form in MORE.items() if any(row.spread(key) for row in group.rows)}
    columns += ["loss", *(MEASURES[key].title for key in more)]
    columns += ["held-out loss"] if held_out else []
    rows = []
    for row in group.rows:
        cells = [_name(row), _seeds(row), _before(row), _spread(row.spread("score"), 100, "")]
        cells += [_difference(row, group), _spread(row.spread("loss"), 1, "", 4)]
        cells += [_spread(row.spread(key), *form) for key, form in more.items()]
        if held_out:
            loss = row.held_out()
            cells.append("-" if loss is None else f"{loss:.4f}")
        rows.append(cells)
    return columns, rows


def _costs(group: Group) -> Cells:
    rows = []
    for row in group.rows:
        spreads = [row.spread(key) for key in COSTS]
        shown = (
            "-" if spread is None else MEASURES[key].show(spread.mean)
            for key, spread in zip(COSTS, spreads, strict=True)
        )
        rows.append([_name(row), *shown])
    return ["method", *(MEASURES[key].title for key in COSTS)], rows


def _reached(group: Group, target: float) -> Cells:
    """Return means over the seeds that reached the target, and how many did."""
    columns = ["method", f"reached {100 * target:g} %", "rounds", "uplink", "training time"]
    rows = []
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
        rows.append([_name(row), f"{len(there)} of {len(moments)}", *means])
    return columns, rows


def _name(row: Row) -> str:
    return f"{row.label} *" if row.chosen else row.label


def _seeds(row: Row) -> str:
    done = len(row.finished)
    return str(done) if row.complete else f"{done} of {len(row.cells)}"


def _before(row: Row) -> str:
    firsts = [headline(cell.summary.initial)[1] for cell in row.finished if cell.summary]
    return _spread(Spread.of(firsts), 100, "")


def _spread(spread: Spread | None, scale: float, unit: str, digits: int = 2) -> str:
    if spread is None:
        return "-"
    mean = f"{scale * spread.mean:.{digits}f}"
    if spread.deviation is None:
        return mean + unit
    return f"{mean} ({scale * spread.deviation:.{digits}f}){unit}"


def _difference(row: Row, group: Group) -> str:
    shown = plain_difference(row.against(group.reference) if row in group.standing else None)
    if shown is None:
        return "-"
    if shown["low"] is None:
        return f"{100 * shown['mean']:+.2f} in every seed"
    return f"{100 * shown['mean']:+.2f} [{100 * shown['low']:+.2f}, {100 * shown['high']:+.2f}]"
