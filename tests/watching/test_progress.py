"""How far runs are: states from their files, times against sums by hand, reading only news."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from hofl.core.errors import HoflError
from hofl.experiment.journal import Journal
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory
from hofl.watching.folder import Watched
from hofl.watching.progress import Standing, all_left, is_locked, is_over, seconds_left
from support.cells import cell
from support.written_runs import write_run

LATER = 3600.0
"""Seconds after which no file is fresh."""


def states(*paths: Path, later: float = 0.0) -> dict[str, str]:
    standings = Watched(paths).standings(time.time() + later)
    return {one.name: one.state for one in standings}


def test_the_state_of_a_run_follows_its_lock_its_log_and_its_files(tmp_path: Path) -> None:
    done = write_run(tmp_path / "done", "fedavg", 5)
    half = write_run(tmp_path / "half", "hofl", 5, rounds=3)
    assert states(done, half) == {"done": "finished", "half": "running"}, "its files are fresh"
    assert states(half, later=LATER) == {"half": "stopped"}
    with RunDirectory(half).locked():
        assert is_locked(half)
        assert not is_locked(done)
        assert states(half, later=LATER) == {"half": "running"}
    Journal(half).append("started", {"round": 0})
    Journal(half).stopped(HoflError("the disk is full"))
    (stopped,) = Watched([half]).standings(time.time())
    assert (stopped.state, stopped.reason) == ("stopped", "the disk is full")
    text = (half / "metrics.jsonl").read_text()
    (half / "metrics.jsonl").write_text(text.replace('"round": 1,', '"round": 9,', 1))
    (damaged,) = Watched([half]).standings(time.time())
    assert damaged.state == "failed"
    assert "hofl repair" in damaged.reason


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    half = write_run(tmp_path / "half", "hofl", 5, rounds=3)
    whole = (half / "metrics.jsonl").read_text()
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "coh')
    (one,) = Watched([half]).standings(time.time())
    assert (one.state, one.rounds) == ("running", 3)
    (half / "metrics.jsonl").write_text(whole)


def test_a_folder_may_be_empty_and_must_exist(tmp_path: Path) -> None:
    watched = Watched([tmp_path])
    assert watched.cells() == []
    assert watched.contents(time.time())["progress"] == []
    write_run(tmp_path / "late", "hofl", 5, rounds=1)
    assert [one.name for one in watched.standings(time.time())] == ["late"]
    with pytest.raises(HoflError, match="is not a folder"):
        Watched([tmp_path / "typo"])


def test_a_run_is_read_again_only_when_its_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", "fedavg", 5)
    half = write_run(tmp_path / "b", "hofl", 5, rounds=3)
    opened: list[str] = []
    whole = RunDirectory.metrics

    def counted(run: RunDirectory) -> list[RoundRecord]:
        opened.append(run.path.name)
        return whole(run)

    monkeypatch.setattr(RunDirectory, "metrics", counted)
    watched = Watched([tmp_path])
    watched.cells()
    watched.cells()
    assert opened == ["a", "b"]
    RunDirectory(half).record(RoundRecord(round=4))
    assert [len(one.records) for one in watched.cells()] == [7, 5]
    assert opened == ["a", "b", "b"]


def rounds(count: int, seconds: float, **more: float) -> list[RoundRecord]:
    return [RoundRecord(round=n, seconds=seconds if n else 0.0, **more) for n in range(count + 1)]


def test_time_left_is_that_of_rounds_and_evaluations_to_come() -> None:
    """20 rounds of 3 s (and 1 s of waiting), evaluated every fourth for 2 s; 10 are done."""
    records = rounds(10, 3.0, waited=1.0)
    scored = [replace(r, eval_seconds=2.0) if r.round % 4 == 0 else r for r in records]
    running = replace(
        cell("hofl", 5, None, records=scored, config={"evaluation.every": 4}), rounds=20
    )
    # Rounds 12, 16 and 20 will be evaluated; the files of this cell do not exist: a round has gone.
    assert seconds_left(running, now=1e9) == pytest.approx(10 * 4.0 + 3 * 2.0 - 4.0)
    slow = [*scored[:10], replace(scored[10], seconds=300.0)]
    assert seconds_left(replace(running, records=slow), now=1e9) == pytest.approx(42.0), "a median"
    assert seconds_left(replace(running, records=records[:1]), now=1e9) is None


def test_time_left_of_all_counts_what_waits_by_what_is_known() -> None:
    done = Standing(cell("hofl", 5, 0.5, records=rounds(4, 25.0)), "finished", 0.0)
    first = Standing(cell("hofl", 6, None, records=rounds(2, 25.0)), "running", 50.0)
    second = Standing(cell("hofl", 7, None, records=rounds(3, 25.0)), "running", 25.0)
    waiting = Standing(cell("hofl", 8, None), "waiting")
    assert all_left([done, first, second]) == pytest.approx(50.0), "both run at once"
    # Each takes 100 s as a whole: (50 + 25 + 3 x 100) / 2 at a time.
    assert all_left([done, first, second, *[waiting] * 3]) == pytest.approx(187.5)
    assert all_left([done, waiting]) is None
    assert is_over([done])
    assert is_over([done, Standing(waiting.cell, "failed", 0.0, "why")])
    assert not is_over([done, waiting])
    assert not is_over([])
