"""What the pages of docs/results/ share: numbers of rows as text, and the head of a comparison."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from results_definitions import DEFINITIONS, Definition

Data = dict[str, Any]
HEAD = "<!-- Written by tools/make_results.py (make results): change that, or run more. -->"
BY_NAME = {definition.name: definition for definition in DEFINITIONS}


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph at 110 columns; lines behind the first may be indented."""
    lines = textwrap.wrap(
        text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def spread(row: Data, key: str, scale: float = 1.0, digits: int = 2) -> str:
    """Mean and sample deviation over the finished seeds."""
    found = row["measures"].get(key)
    if found is None:
        return "-"
    mean = f"{scale * found['mean']:.{digits}f}"
    if found["deviation"] is None:
        return mean
    return f"{mean} ({scale * found['deviation']:.{digits}f})"


def interval(found: Data | None, scale: float = 1.0, digits: int = 2) -> str:
    """A paired difference with its 95 % interval."""
    if found is None:
        return "-"
    if found["low"] is None:
        return f"{scale * found['mean']:+.{digits}f} in every seed"
    values = [scale * found[key] for key in ("mean", "low", "high")]
    mean, low, high = (f"{value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"


def amount(row: Data, key: str, show: Callable[[float], str]) -> str:
    """The mean of a measure that hardly differs between seeds."""
    found = row["measures"].get(key)
    return "-" if found is None else show(found["mean"])


def finished(row: Data) -> str:
    """How many seeds of a row are finished."""
    done = sum(cell["state"] == "finished" for cell in row["cells"])
    whole = len(row["cells"])
    return str(done) if done == whole else f"{done} of {whole}"


def state_of(data: Data, definition: Definition) -> str:
    """How much of a definition was run."""
    if definition.name not in data:
        return "not run"
    rows = [row for group in data[definition.name]["groups"] for row in group["rows"]]
    cells = [cell for row in rows for cell in row["cells"]]
    done = sum(cell["state"] == "finished" for cell in cells)
    return f"{done} of {len(cells)} runs finished"


def headed(data: Data, name: str) -> Iterator[str]:
    """The head of a section on one comparison: command and machine; or that it was not run."""
    definition = BY_NAME[name]
    yield f"## {definition.title}\n"
    yield f"```\n{definition.command()}\n```\n"
    if name not in data:
        yield "Not run yet.\n"
        return
    made = data[name]["made_with"]
    packages = made.get("packages") or {}
    yield (
        wrapped(
            f"{state_of(data, definition)}; hofl at {made.get('git')}, torch "
            f"{packages.get('torch')}, Python {made.get('python')}, {made.get('cores')} shared CPU "
            "cores. Mean (sample SD) over the finished seeds."
        )
        + "\n"
    )


def groups_of(data: Data, name: str) -> Iterator[tuple[list[str], Data]]:
    """The tables of a comparison, each with what is to be said above it."""
    for number, group in enumerate(data[name]["groups"] if name in data else ()):
        differs = ", ".join(group["differs"])
        yield [f"Not comparable with the rows above ({differs} differ):\n"] if number else [], group
