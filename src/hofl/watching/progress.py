"""How far runs are, and about how long they will take, from their files alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from hofl.core.errors import HoflError
from hofl.experiment.journal import Journal
from hofl.experiment.records import RoundRecord
from hofl.reporting.cells import Cell

RECENT = 10
"""Rounds by which the pace of a run is judged."""
FRESH = 60.0
"""Seconds for which a run counts as running after its files changed, whoever holds its lock.

It is loading its model then, or another machine runs it, whose locks are not seen here.
"""


@dataclass(frozen=True)
class Standing:
    """How far one run is.

    Args:
        cell: what was read of it.
        state: ``finished``, ``failed``, ``running``, ``stopped`` or ``waiting``.
        left: about how many seconds it will still take; None where that is not known.
        reason: why it failed or stopped.
    """

    cell: Cell
    state: str
    left: float | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """What tables call it: row and seed of a comparison, otherwise its folder."""
        label, seed = self.cell.label, self.cell.seed
        return f"{label}, seed {seed}" if label else self.cell.path.name

    @property
    def rounds(self) -> int:
        """Rounds that it has trained."""
        return max(len(self.cell.records) - 1, 0)


def standing_of(cell: Cell, now: float) -> Standing:
    """Return how far a run is.

    Args:
        cell: the run as it was read.
        now: seconds since the epoch, as files' times are.
    """
    if cell.state in ("finished", "failed"):
        return Standing(cell, cell.state, 0.0, cell.problem)
    if not cell.config:
        return Standing(cell, "waiting")
    if _is_worked_on(cell.path, now):
        return Standing(cell, "running", seconds_left(cell, now))
    return Standing(cell, "stopped", None, _why_stopped(cell.path))


def seconds_left(cell: Cell, now: float) -> float | None:
    """Return about how many seconds a running cell will take; None before its first round.

    The median of recent rounds for each round to come, and the mean of its evaluations for each
    evaluation to come, less the time since the last round.
    """
    trained = cell.records[1:]
    if not trained:
        return None
    pace = median(_took(record) for record in trained[-RECENT:])
    evaluations = [record.eval_seconds for record in cell.records if record.eval_seconds]
    every, done, rounds = int(cell.config.get("evaluation.every", 0)), len(trained), cell.rounds
    to_score = sum(
        1 for n in range(done + 1, rounds + 1) if n == rounds or (every and n % every == 0)
    )
    to_come = (rounds - done) * pace + to_score * (fmean(evaluations) if evaluations else 0.0)
    return max(to_come - min(max(now - _changed(cell.path), 0.0), pace), 0.0)


def all_left(standings: Sequence[Standing]) -> float | None:
    """Return about how many seconds until all have ended; None where that is not known.

    What waits takes as long as the mean of what is known, as many at a time as run now.
    """
    running = [standing for standing in standings if standing.state == "running"]
    lefts = [standing.left for standing in running if standing.left is not None]
    if not running or len(lefts) < len(running):
        return None
    known = [
        _whole(standing.cell, standing.left or 0.0) for standing in standings if standing.rounds
    ]
    waiting = sum(standing.state in ("waiting", "stopped") for standing in standings)
    return max(max(lefts), (sum(lefts) + waiting * fmean(known)) / len(running))


def is_over(standings: Sequence[Standing]) -> bool:
    """Return whether nothing more is to be expected."""
    return bool(standings) and all(
        standing.state in ("finished", "failed") for standing in standings
    )


def _took(record: RoundRecord) -> float:
    return record.seconds + (record.waited or 0.0)


def _whole(cell: Cell, left: float) -> float:
    """Return how long a run takes from its start to its end."""
    spent = sum(_took(record) + (record.eval_seconds or 0.0) for record in cell.records)
    return spent + left


def _changed(path: Path) -> float:
    """Return when a run's files last changed; 0 without any."""
    names = ("metrics.jsonl", "audit.jsonl", "config.toml")
    times = [(path / name).stat().st_mtime for name in names if (path / name).exists()]
    return max(times, default=0.0)


def _is_worked_on(path: Path, now: float) -> bool:
    return is_locked(path) or (not _why_stopped(path) and now - _changed(path) < FRESH)


def is_locked(path: Path) -> bool:
    """Return whether a process of this machine is known to hold a run's lock.

    Looked up, not tried: a lock taken for the test could turn away a run that starts
    (``RunDirectory.locked``). False where the system keeps no list of locks.
    """
    try:
        inode = (path / "config.toml").stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return False
    # 1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF
    locks = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return any(words[5].rpartition(":")[2] == str(inode) for words in locks)


def _why_stopped(path: Path) -> str:
    """Return what the audit log says at its end about a stop; empty if it says none."""
    try:
        event = Journal(path).last()
    except (HoflError, OSError):
        return ""
    if event.get("event") != "stopped":
        return ""
    reason = str(event.get("reason", ""))
    return "interrupted" if reason == "KeyboardInterrupt" else reason
