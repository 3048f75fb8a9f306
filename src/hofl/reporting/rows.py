"""Cells as a table: rows of seeds, means and deviations, paired differences, best of a grid.

Cells are compared only within one *setting*: the same data, model, fleet, budget and code. Seeds
of one row are averaged; a row is paired with the reference, the first row of its group, seed by
seed. Where a method has several rows (a grid), the one with the least held-out loss stands for it.
The test set takes no part in that choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from hofl.core.paired import Difference, difference
from hofl.experiment.records import headline
from hofl.reporting.cells import Cell
from hofl.reporting.measures import MEASURES, Reached, held_out_loss, reached


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation of one seed is None."""

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of the values; None of none."""
        if not values:
            return None
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Row:
    """Seeds of one treatment in one setting.

    Args:
        label: the method, and the options in which it differs from other rows of its method.
        cells: one per seed, whatever their state.
        chosen: of several rows of a method, whether it stands for the method; None for a single
            row, and where there is nothing to choose by.
    """

    label: str
    cells: Sequence[Cell]
    chosen: bool | None = None

    @property
    def finished(self) -> list[Cell]:
        """Its cells that can be averaged: finished, the first of each seed."""
        by_seed: dict[int | None, Cell] = {}
        for cell in self.cells:
            if cell.state == "finished":
                by_seed.setdefault(cell.seed, cell)
        return list(by_seed.values())

    @property
    def complete(self) -> bool:
        """Whether every cell is finished."""
        return all(cell.state == "finished" for cell in self.cells)

    @property
    def method(self) -> str:
        """Name of its method."""
        named = [c.config["method.name"] for c in self.cells if "method.name" in c.config]
        return str(named[0]) if named else self.label.split(" ")[0]

    @property
    def metric(self) -> str:
        """Name of its score."""
        return headline(self.finished[0].summary.final)[0] if self.finished else "score"  # type: ignore[union-attr]

    def values(self, key: str) -> dict[int | None, float]:
        """Return a measure of every finished seed that has it."""
        by_seed = {cell.seed: MEASURES[key].of(cell) for cell in self.finished}
        return {seed: float(v) for seed, v in by_seed.items() if v is not None and math.isfinite(v)}

    def spread(self, key: str) -> Spread | None:
        """Return mean and deviation of a measure over the finished seeds."""
        return Spread.of(list(self.values(key).values()))

    def held_out(self) -> float | None:
        """Return the mean held-out loss, if every seed is finished and has one."""
        losses = [held_out_loss(cell) for cell in self.finished]
        whole = self.complete and losses and None not in losses
        mean = fmean(loss for loss in losses if loss is not None) if whole else math.inf
        return mean if math.isfinite(mean) else None

    def against(self, other: "Row", key: str = "score") -> Difference | None:
        """Return this row's paired difference from another; None for less than two pairs."""
        mine, theirs = self.values(key), other.values(key)
        seeds = [seed for seed in mine if seed in theirs]
        if self is other or len(seeds) < 2:
            return None
        first, second = ([values[s] for s in seeds] for values in (mine, theirs))
        return difference(np.array(first)[:, None], np.array(second)[:, None])

    def reached(self, target: float) -> list[Reached | None]:
        """Return when each finished seed reached a score."""
        return [reached(cell.records, target) for cell in self.finished]


@dataclass(frozen=True)
class Group:
    """Rows that can be compared with each other.

    Args:
        rows: in the order of their cells.
        differs: keys of the setting that are not as in the first group, with (first, this).
    """

    rows: Sequence[Row]
    differs: dict[str, tuple[Any, Any]]

    @property
    def name(self) -> str:
        """What all its runs that were begun are called; empty where they have several names."""
        begun = [cell for row in self.rows for cell in row.cells if cell.config]
        names = {str(cell.config.get("name", "")) for cell in begun}
        return names.pop() if len(names) == 1 else ""

    @cached_property
    def standing(self) -> list[Row]:
        """The rows that stand for their methods."""
        return [row for row in self.rows if row.chosen is not False]

    @property
    def reference(self) -> Row:
        """The row that others are compared with: the first of those that stand."""
        return self.standing[0]


def table_of(cells: Sequence[Cell]) -> list[Group]:
    """Return the groups of comparable rows, that of the first cell first."""
    settings: list[dict[str, Any]] = []
    members: list[list[Cell]] = []
    homes: dict[Path, int] = {}
    for cell in (cell for cell in cells if cell.config):
        if cell.setting not in settings:
            settings.append(cell.setting)
            members.append([])
        place = settings.index(cell.setting)
        members[place].append(cell)
        homes.setdefault(cell.path.parent, place)
    # What has no configuration yet, or never got one, is shown with the others of its comparison.
    rest = [cell for cell in cells if not cell.config]
    if rest and not members:
        settings, members = [{}], [[]]
    for cell in rest:
        members[homes.get(cell.path.parent, 0)].append(cell)
    order = {cell.path: place for place, cell in enumerate(cells)}
    groups = []
    for setting, mine in zip(settings, members, strict=True):
        differs = {
            key: (settings[0].get(key), setting.get(key))
            for key in sorted({*settings[0], *setting})
            if settings[0].get(key) != setting.get(key)
        }
        rows = _rows(sorted(mine, key=lambda cell: order[cell.path]))
        groups.append(Group(_chosen(rows), differs))
    return groups


def _rows(cells: Sequence[Cell]) -> list[Row]:
    """Put cells of one treatment together; what is not begun goes by the name of its row."""
    by_key: dict[str, list[Cell]] = {}
    names = {cell.label: cell.digest for cell in cells if cell.config and cell.label}
    for cell in cells:
        key = cell.digest if cell.config else names.get(cell.label, cell.label)
        by_key.setdefault(key, []).append(cell)
    groups = list(by_key.values())
    return [Row(_label(mine, groups), mine) for mine in groups]


def _label(cells: Sequence[Cell], groups: Sequence[Sequence[Cell]]) -> str:
    """Return the name that a comparison gave, or the method and what sets it apart."""
    named = next((cell.label for cell in cells if cell.label), "")
    mine = next((cell for cell in cells if cell.config), None)
    if named or mine is None:
        return named or cells[0].path.name
    method = mine.config["method.name"]
    others = [c for g in groups for c in g[:1] if c.config and c.config["method.name"] == method]
    varied = [
        key
        for key in mine.treatment
        if any(other.treatment.get(key) != mine.treatment[key] for other in others)
    ]
    return " ".join(
        [str(method), *(f"{k.removeprefix('method.')}={mine.treatment[k]}" for k in varied)]
    )


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """Mark which row stands for a method that has several, by held-out loss alone."""
    marked = []
    for row in rows:
        same = [other for other in rows if other.method == row.method]
        losses = {id(other): loss for other in same if (loss := other.held_out()) is not None}
        if len(same) > 1 and losses:
            row = replace(row, chosen=min(losses, key=losses.__getitem__) == id(row))
        marked.append(row)
    return marked
