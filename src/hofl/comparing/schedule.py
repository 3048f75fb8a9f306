"""Carry out a comparison: finished cells are skipped, the others run as many at a time as fit."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path

from hofl.comparing.cell import forget_failure, note_failure, run_cell
from hofl.comparing.plan import Comparison, Planned, most_at_once, planned
from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.core.process import (
    IMPORTED_AGAIN,
    kibibytes,
    leave_if_imported_again,
    memory_left,
)
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.launch import readable_errors
from hofl.experiment.runs import RunDirectory, plain_values
from hofl.reporting.cells import failure_of, read_cells
from hofl.reporting.rows import Group, table_of
from hofl.reporting.tables import plain_table

MARGIN = 1.25
"""A cell is started when this many times the largest peak of a cell so far is free."""
PAUSE = 0.2
"""Seconds between looks at the running cells."""


@dataclass(frozen=True)
class Progress:
    """How far a comparison is.

    Args:
        done: names of cells that are finished, also by earlier invocations.
        failed: name -> reason.
        running: name -> (rounds recorded, rounds to train).
        waiting: names of cells that have not been started.
    """

    done: list[str]
    failed: dict[str, str]
    running: dict[str, tuple[int, int]]
    waiting: list[str]


Watch = Callable[[Progress], None]


def compare(
    config: ExperimentConfig,
    out: str | Path,
    methods: Sequence[str],
    seeds: int | Sequence[int] = 3,
    grid: Mapping[str, Sequence[str]] | None = None,
    at_once: int | None = None,
    watch: Watch = lambda progress: None,
) -> list[Group]:
    """Compare methods over seeds and a grid, and return the table.

    Args:
        config: what all cells have in common.
        out: folder of the comparison; one of the same configuration is continued.
        methods: names, with changes behind colons: ``recompute:uplink_bits=4``.
        seeds: a number of seeds, counted from the configuration's own, or a list of them.
        grid: values by key of the configuration, such as ``method.optimizer.lr``.
        at_once: most cells at a time; None is as many as memory and cores allow.
        watch: called again and again while cells run.
    """
    leave_if_imported_again()
    comparison = planned(config, Path(out), methods, seeds, grid or {})
    with readable_errors(comparison.path):
        comparison.write()
        return carry_out(comparison, at_once, watch)


def carry_out(comparison: Comparison, at_once: int | None, watch: Watch) -> list[Group]:
    """Run what is not finished, and return the table of all cells."""
    if at_once is not None and at_once < 1:
        raise HoflError(f"at_once must be at least 1, got {at_once}.")
    pool = CellPool(comparison, at_once)
    try:
        while not pool.finished():
            watch(pool.progress())
            time.sleep(PAUSE)
    finally:
        pool.stop()
    watch(pool.progress())
    return write_table(comparison.path)


def write_table(path: Path) -> list[Group]:
    """Read all cells of a comparison, and write their table."""
    groups = table_of(read_cells([path]))
    write_whole(path / "table.json", json.dumps(plain_table(groups), indent=2) + "\n")
    return groups


class CellPool:
    """The cells of a comparison and the processes that run them."""

    def __init__(self, comparison: Comparison, at_once: int | None) -> None:
        self._path = comparison.path
        self._waiting: list[Planned] = []
        self._running: dict[str, tuple[Planned, SpawnProcess]] = {}
        self._done: list[str] = []
        self._largest = 0
        self._measures = at_once is None
        self._most = at_once or most_at_once(comparison.base)
        for cell in comparison.cells:
            if self._is_done(cell.name):
                self._done.append(cell.name)
            else:
                forget_failure(self._path, cell.name)
                self._waiting.append(cell)
        self._failed: dict[str, str] = {}

    def finished(self) -> bool:
        """Collect what has ended, start what fits, and return whether nothing is left."""
        for name, (cell, process) in list(self._running.items()):
            self._largest = max(self._largest, _peak(process.pid))
            if not process.is_alive():
                del self._running[name]
                self._collect(cell, process)
        while self._waiting and self._may_start():
            self._start(self._waiting.pop(0))
        return not self._waiting and not self._running

    def progress(self) -> Progress:
        """Return how far all cells are."""
        running = {
            name: (self._rounds(name), cell.rounds) for name, (cell, _) in self._running.items()
        }
        waiting = [cell.name for cell in self._waiting]
        return Progress(list(self._done), dict(self._failed), running, waiting)

    def stop(self) -> None:
        """End the processes that still run: their runs can be resumed."""
        for _, process in self._running.values():
            process.terminate()
        for _, process in self._running.values():
            process.join()

    def _start(self, cell: Planned) -> None:
        values = plain_values(cell.config)
        process = multiprocessing.get_context("spawn").Process(
            target=run_cell, args=(self._path, cell.name, values, os.getpid()), name=cell.name
        )
        process.start()
        self._running[cell.name] = (cell, process)

    def _collect(self, cell: Planned, process: SpawnProcess) -> None:
        process.join()
        reason = failure_of(self._path, cell.name)
        if not reason and not self._is_done(cell.name):
            reason = _why_ended(process.exitcode)
            note_failure(self._path, cell.name, reason)
        if reason:
            self._failed[cell.name] = reason
        else:
            self._done.append(cell.name)
        write_table(self._path)

    def _is_done(self, name: str) -> bool:
        try:
            return RunDirectory(self._path / "cells" / name).finished() is not None
        except HoflError:  # damaged: resuming it says so, as the reason of its failure
            return False

    def _may_start(self) -> bool:
        """Return whether one more cell fits; without a stated number, by measured memory."""
        if not self._running or len(self._running) >= self._most or not self._measures:
            return len(self._running) < self._most
        if any(self._rounds(name) < 1 for name in self._running):
            return False  # what it needs is known after its first round
        return min(memory_left(), default=0) > MARGIN * self._largest

    def _rounds(self, name: str) -> int:
        """Return how many rounds a cell has recorded, the start left out; -1 before the start."""
        try:
            return (self._path / "cells" / name / "metrics.jsonl").read_bytes().count(b"\n") - 1
        except OSError:
            return -1


def _why_ended(code: int | None) -> str:
    if code == IMPORTED_AGAIN:
        return "the script must start the comparison under `if __name__ == '__main__':`."
    why = "for lack of memory: use --at-once 1" if code == -9 else "see logs/"
    return f"its process ended with code {code}, perhaps {why}."


def _peak(pid: int | None) -> int:
    """Return the largest resident set of a process so far; 0 where the system does not say."""
    return kibibytes(Path(f"/proc/{pid}/status"), "VmHWM") or 0
