"""What a study's runs came to, beside the paper's numbers. Reads files alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.paper.numbers import Reported
from hofl.paper.studies import Block
from hofl.reporting.cells import Cell, read_cells
from hofl.reporting.rows import Row, Spread, table_of


@dataclass(frozen=True)
class Outcome:
    """One number of the paper, and the same from runs here.

    Args:
        block: name of the setting.
        arm: label of the column.
        metric: accuracy, em, f1 or loss.
        paper: what the paper reports.
        here: of the finished seeds, in the paper's units; None without any.
        state: how many seeds are finished, and why others failed.
    """

    block: str
    arm: str
    metric: str
    paper: Reported
    here: Spread | None
    state: str


def outcomes(block: Block, folder: Path) -> list[Outcome]:
    """Return every number of a block, whether or not its runs are finished."""
    rows = [row for group in table_of(read_cells([folder])) for row in group.rows]
    results = []
    for label, numbers in block.paper.items():
        mine = [row for row in rows if row.label == label]
        cells = [cell for row in mine for cell in row.cells]
        for metric, reported in numbers.items():
            # Runs of another code version are in a row of their own, and are not averaged.
            here = _spread(mine[0], metric) if mine else None
            results.append(Outcome(block.name, label, metric, reported, here, _state(mine, cells)))
    return results


def _spread(row: Row, metric: str) -> Spread | None:
    scale = 1 if metric == "loss" else 100
    values = [
        scale * cell.summary.final[metric]
        for cell in row.finished
        if cell.summary is not None and metric in cell.summary.final
    ]
    return Spread.of(values)


def _state(rows: Sequence[Row], cells: Sequence[Cell]) -> str:
    done = sum(cell.state == "finished" for cell in cells)
    parts = [f"{done} of {len(cells)} seeds"]
    parts += [f"seed {c.seed} failed: {c.problem}" for c in cells if c.state == "failed"]
    if len(rows) > 1:
        parts.append("others are of another code version, and not averaged")
    return "; ".join(parts)


def plain_outcomes(results: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return outcomes as plain values."""
    return [
        {
            "block": outcome.block,
            "arm": outcome.arm,
            "metric": outcome.metric,
            "paper": list(outcome.paper),
            "here": None if outcome.here is None else vars(outcome.here),
            "state": outcome.state,
        }
        for outcome in results
    ]
