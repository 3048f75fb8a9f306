"""What a report shows, as plain values: the table, and every cell with its curves and origins."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from hofl.core.version import VERSION
from hofl.experiment.records import RoundRecord, headline
from hofl.reporting.cells import Cell
from hofl.reporting.measures import MEASURES, boundaries_of
from hofl.reporting.rows import Group, table_of
from hofl.reporting.tables import plain_table

AXES = {
    "round": "rounds",
    "examples": "training examples",
    "uplink": "uplink (bytes)",
    "seconds": "training time (s)",
}
"""What a curve can be drawn against."""
SHOWN = 8
"""Sample answers of a run that the page shows."""
HIDDEN = ("name", "seed")
"""Keys in which runs always differ."""


def contents(cells: Sequence[Cell], title: str) -> dict[str, Any]:
    """Return everything that the page needs."""
    groups = table_of(cells)
    table = plain_table(groups)
    for group, plain in zip(groups, table["groups"], strict=True):
        for row, values in zip(group.rows, plain["rows"], strict=True):
            for cell, entry in zip(row.cells, values["cells"], strict=True):
                entry |= cell_facts(cell)
    return {
        "title": title,
        "version": VERSION,
        "axes": AXES,
        "measures": {
            key: {"title": measure.title, "more": measure.more_is_better}
            for key, measure in MEASURES.items()
        },
        "differences": differences(groups),
        **table,
    }


def cell_facts(cell: Cell) -> dict[str, Any]:
    """Return what the page shows of one run beside its row."""
    cuts, summary = boundaries_of(cell), cell.summary
    return {
        "series": series(cell.records),
        "config": dict(cell.config),
        "environment": dict(cell.environment),
        "boundaries": [] if cuts is None else cuts.tolist(),
        "budgets": list(cell.config.get("fleet.budgets", ())),
        "blocks": summary.blocks if summary else 0,
        "peaks": summary.peak_by_boundary if summary else {},
        "bill": _bill(cell.path),
        "answers": answers_of(cell.path),
        "expected": summary.audit.get("expected", []) if summary else [],
        "realised": summary.audit.get("realised", []) if summary else [],
    }


def series(records: Sequence[RoundRecord]) -> dict[str, list[float | None]]:
    """Return the columns of a run's rounds; sums so far for what adds up."""
    sums: dict[str, list[float]] = {
        "examples": [record.examples for record in records],
        "uplink": [record.uplink_bytes for record in records],
        "seconds": [record.seconds for record in records],
    }
    return {
        "round": [record.round for record in records],
        **{name: list(accumulate(values)) for name, values in sums.items()},
        "score": [headline(record.scores)[1] if record.scores else None for record in records],
        "test_loss": [record.scores.get("loss") for record in records],
        "train_loss": [record.train_loss for record in records],
        "snr": [record.zo_snr for record in records],
    }


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the keys in which rows differ, with the value of each row, all groups in order.

    A row that was not begun has no values, and differs in none.
    """
    firsts = [
        next((c for c in row.cells if c.config), None) for group in groups for row in group.rows
    ]
    values: list[Mapping[str, Any]] = [
        {} if cell is None else {**cell.setting, **cell.treatment} for cell in firsts
    ]
    begun = [settings for settings in values if settings]
    keys = sorted({key for settings in begun for key in settings} - set(HIDDEN))
    return {
        key: [settings.get(key) for settings in values]
        for key in keys
        if any(settings.get(key) != begun[0].get(key) for settings in begun)
    }


def _bill(path: Path) -> list[dict[str, Any]]:
    """Return the memory plan's items by boundary, where boundaries were planned for budgets."""
    try:
        chosen = json.loads((path / "plan.json").read_text(encoding="utf-8"))["chosen"]
        return [{"budget": budget, **cost} for budget, cost in chosen.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def answers_of(path: Path) -> list[dict[str, str]]:
    """Return a few sample answers of a run, where it wrote any."""
    try:
        rows = json.loads((path / "samples.json").read_text(encoding="utf-8"))["answers"]
        return [
            {name: str(row[name]) for name in ("prompt", "expected", "before", "after")}
            for row in rows[:SHOWN]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
