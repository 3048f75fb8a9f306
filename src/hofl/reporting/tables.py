"""A comparison's table as plain values: for ``--json``, ``table.json`` and the report."""

from collections.abc import Sequence
from typing import Any

from hofl.core.paired import Difference
from hofl.reporting.cells import Cell
from hofl.reporting.measures import MEASURES
from hofl.reporting.rows import Group, Row

LEVEL = 0.95
"""Of confidence intervals."""


def plain_table(groups: Sequence[Group], target: float | None = None) -> dict[str, Any]:
    """Return all groups, rows and cells as plain values."""
    return {
        "level": LEVEL,
        "groups": [
            {
                "name": group.name,
                "differs": {key: list(pair) for key, pair in group.differs.items()},
                "reference": group.reference.label,
                "rows": [_row(row, group, target) for row in group.rows],
            }
            for group in groups
        ],
    }


def _row(row: Row, group: Group, target: float | None) -> dict[str, Any]:
    spreads = {key: row.spread(key) for key in MEASURES}
    values: dict[str, Any] = {
        "label": row.label,
        "method": row.method,
        "metric": row.metric,
        "chosen": row.chosen,
        "held_out_loss": row.held_out(),
        "measures": {key: vars(spread) for key, spread in spreads.items() if spread},
        "difference": plain_difference(row.against(group.reference)),
        "cells": [_cell(cell) for cell in row.cells],
    }
    if target is not None:
        moments = row.reached(target)
        values["reached"] = [None if moment is None else vars(moment) for moment in moments]
    return values


def plain_difference(difference: Difference | None) -> dict[str, Any] | None:
    """Return a difference with its interval as plain values.

    Scores are counts of a few hundred examples: two seeds that differ by the same count are luck,
    and no measure of it. Then there is no interval.
    """
    if difference is None:
        return None
    if difference.error == 0:
        return {"mean": difference.mean, "low": None, "high": None, "p_value": None}
    low, high = difference.interval(LEVEL)
    return {"mean": difference.mean, "low": low, "high": high, "p_value": difference.two_sided}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "path": str(cell.path),
        "seed": cell.seed,
        "state": cell.state,
        "rounds": max(len(cell.records) - 1, 0),
        "of": cell.rounds,
        "problem": cell.problem,
        "digest": cell.digest if cell.config else "",
    }
