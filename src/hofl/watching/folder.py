"""Folders of runs that are looked at again and again: only what has changed is read again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.reporting.cells import Cell, holds_cells, read_cell, read_cells
from hofl.reporting.contents import contents
from hofl.watching.progress import Standing, all_left, standing_of

FILES = ("config.toml", "environment.json", "plan.json", "metrics.jsonl", "summary.json")
"""Of a run, those that a cell is read from."""
Stamp = tuple[tuple[int, int] | None, ...]
"""Time and size of files; None for one that is not there."""


class Watched:
    """Runs, comparisons, and folders that hold runs, or will.

    Raises:
        HoflError: a folder does not exist.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.is_dir():
                raise HoflError(f"{path} is not a folder. Give that of a run or a comparison.")
        self._paths = tuple(paths)
        self._read: dict[Path, tuple[Stamp, Cell]] = {}

    @property
    def title(self) -> str:
        """What a page about them is called."""
        return "hofl: " + ", ".join(path.resolve().name for path in self._paths)

    def cells(self) -> list[Cell]:
        """Return the cells as they are now; none while no run has been started.

        Raises:
            HoflError: the list of a comparison's cells is damaged.
        """
        begun = [path for path in self._paths if _holds_runs(path)]
        return read_cells(begun, self._cell)

    def standings(self, now: float) -> list[Standing]:
        """Return how far every run is."""
        return [standing_of(cell, now) for cell in self.cells()]

    def contents(self, now: float) -> dict[str, Any]:
        """Return what a live page shows: a report's contents, and how far the runs are."""
        standings = self.standings(now)
        progress = [
            {
                "name": standing.name,
                "state": standing.state,
                "rounds": standing.rounds,
                "of": standing.cell.rounds,
                "left": standing.left,
                "reason": standing.reason,
            }
            for standing in standings
        ]
        report = contents([standing.cell for standing in standings], self.title)
        return {**report, "progress": progress, "left": all_left(standings)}

    def _cell(self, path: Path, label: str, seed: int | None) -> Cell:
        stamp = _stamp(path)
        before = self._read.get(path)
        if before is None or before[0] != stamp:
            before = self._read[path] = (stamp, read_cell(path, label, seed))
        return before[1]


def _holds_runs(path: Path) -> bool:
    return holds_cells(path) or any(map(holds_cells, path.iterdir()))


def _stamp(path: Path) -> Stamp:
    stamp: list[tuple[int, int] | None] = []
    for name in FILES:
        try:
            status = (path / name).stat()
            stamp.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamp.append(None)
    return tuple(stamp)
