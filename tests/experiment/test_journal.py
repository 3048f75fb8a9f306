"""The audit log: what it tells, and that no line can be changed, taken out or put in unnoticed."""

import hashlib
import json
import shutil
import tracemalloc
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import hofl
from hofl.cli.audit import audit
from hofl.core.durable import sealed
from hofl.core.errors import HoflError
from hofl.experiment.journal import Journal, of_day, story
from hofl.experiment.runs import RunDirectory
from support.runs import quick, run_cli, stop_at


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped after round 2, resumed to the end, then from round 2 again."""
    path = tmp_path_factory.mktemp("audit") / "run"
    with pytest.raises(KeyboardInterrupt):
        hofl.run(quick(tiny_folder, fleet={"dropout": 0.3}), path, stop_at(2))
    hofl.resume(path)
    hofl.resume(path, from_round=2)
    return path


def test_it_tells_what_happened(run: Path) -> None:
    events, _ = Journal(run).verified()
    told = [(event["event"], event.get("round")) for event in events]
    first = [("started", 0), ("round", 1), ("round", 2), ("stopped", None)]
    second = [("started", 2), ("round", 3), ("finished", None)]
    assert told == [*first, *second, ("returned", 2), *second]
    rows = RunDirectory(run).metrics()
    for event in events:
        if event["event"] == "round":
            assert event["cohort"] == rows[event["round"]].cohort
    lines = list(story(events))
    assert len(lines) == len(events)
    assert any("round 1 kept: " in line for line in lines)
    assert of_day(events, date.fromisoformat(events[0]["time"][:10]))[0] == events[0]
    assert of_day(events, date(1999, 12, 31)) == []


def test_the_chain_is_one_of_digests_by_hand(run: Path) -> None:
    before = "0" * 64
    for line in (run / "audit.jsonl").read_bytes().splitlines():
        assert json.loads(line)["previous"] == before
        before = hashlib.sha256(line).hexdigest()
    assert Journal(run).verified()[1] == before


def forged(line: bytes, **changes: Any) -> bytes:
    """A line with other facts and a seal that fits them."""
    values = {**json.loads(line), **changes}
    del values["sha256"]
    return sealed(json.dumps(values)).encode()


FORGERIES = {
    "changed": lambda lines: [*lines[:2], forged(lines[2], cohort=[9]), *lines[3:]],
    "taken out": lambda lines: [*lines[:3], *lines[4:]],
    "taken out at the start": lambda lines: lines[1:],
    "put in": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "another time": lambda lines: [forged(lines[0], time="2020-01-01T00:00:00"), *lines[1:]],
    "not JSON": lambda lines: [*lines[:4], b"}{", *lines[4:]],
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_line_shows(kind: str, run: Path, tmp_path: Path) -> None:
    lines = (run / "audit.jsonl").read_bytes().splitlines()
    (tmp_path / "audit.jsonl").write_bytes(b"\n".join(FORGERIES[kind](lines)) + b"\n")
    with pytest.raises(HoflError, match="is not as it was written from line"):
        Journal(tmp_path).verified()


def test_what_a_kill_left_of_a_line_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append("one")
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"time": "2026')
    assert [event["event"] for event in journal.verified()[0]] == ["one"]
    journal.append("two", {"text": "tab\tand\nline"})
    events, _ = journal.verified()
    assert [event["event"] for event in events] == ["one", "two"]
    assert all("\n" not in line for line in story(events))


def test_the_command_prints_the_story_and_refuses_a_forged_log(run: Path, tmp_path: Path) -> None:
    code, output = run_cli("audit", str(run))
    assert code == 0
    assert "11 events, all as they were written" in output
    lines = (run / "audit.jsonl").read_bytes().splitlines()
    (tmp_path / "audit.jsonl").write_bytes(b"\n".join(lines[1:]) + b"\n")
    code, output = run_cli("audit", str(tmp_path))
    assert (code, output.count("\n")) == (2, 1)


def test_why_a_run_stopped_is_written_down(tiny_folder: Path, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "lr": 1e20, "weight_decay": 0.0}
    config = quick(tiny_folder, method={"name": "fedavg", "optimizer": optimizer})
    with pytest.raises(HoflError):
        hofl.run(config, tmp_path / "run")
    last = Journal(tmp_path / "run").verified()[0][-1]
    assert last["event"] == "stopped"
    assert last["reason"].startswith("round 1")


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_end_of_the_last_line_is_damage_and_nothing_is_removed(
    bit: int, run: Path, tmp_path: Path
) -> None:
    data = (run / "audit.jsonl").read_bytes()
    damaged = data[:-1] + bytes([data[-1] ^ 1 << bit])
    (tmp_path / "audit.jsonl").write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(HoflError, match="is not as it was written from line 11 on"):
            Journal(tmp_path).verified()
        Journal(tmp_path).append("started")
        assert (tmp_path / "audit.jsonl").read_bytes().startswith(damaged)


def test_a_last_line_without_its_end_counts(run: Path, tmp_path: Path) -> None:
    """As a kill between the two could leave it."""
    (tmp_path / "audit.jsonl").write_bytes((run / "audit.jsonl").read_bytes()[:-1])
    assert Journal(tmp_path).verified() == Journal(run).verified()
    Journal(tmp_path).append("started")
    assert len(Journal(tmp_path).verified()[0]) == 12


def test_a_round_whose_line_a_kill_prevented_is_written_at_the_next_start(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path, saved = tmp_path / "run", tmp_path / "saved"

    def keep_log(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == 1:
            shutil.copy(path / "audit.jsonl", saved)
        stop_at(2)(event, facts)

    with pytest.raises(KeyboardInterrupt):
        hofl.run(quick(tiny_folder), path, keep_log)
    shutil.copy(saved, path / "audit.jsonl")  # the checkpoint of round 2 is there, its line is not
    hofl.resume(path)
    events, _ = Journal(path).verified()
    told = [(event["event"], event.get("round")) for event in events]
    first = [("started", 0), ("round", 1), ("round", 2)]
    assert told == [*first, ("started", 2), ("round", 3), ("finished", None)]
    assert [event["round"] for event in events if event.get("late")] == [2]
    assert events[2]["cohort"] == RunDirectory(path).metrics()[2].cohort


def test_a_long_log_is_not_read_to_add_a_line(run: Path, tmp_path: Path) -> None:
    """Lines longer than a block, too; measured in bytes that are held at once."""
    lines = (run / "audit.jsonl").read_bytes()
    with (tmp_path / "audit.jsonl").open("wb") as file:
        file.truncate(50_000_000)
        file.seek(0, 2)
        file.write(b"\n" + lines)
    tracemalloc.start()
    Journal(tmp_path).append("one", {"text": "x" * 200_000})
    Journal(tmp_path).append("two")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000
    (tmp_path / "audit.jsonl").write_bytes((tmp_path / "audit.jsonl").read_bytes()[50_000_001:])
    assert [event["event"] for event in Journal(tmp_path).verified()[0][-2:]] == ["one", "two"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("broken")])
def test_whatever_stops_a_run_is_written_down(
    error: Exception, tiny_folder: Path, tmp_path: Path
) -> None:
    def fail(event: str, facts: Any) -> None:
        if event == "round":
            raise error

    with pytest.raises((HoflError, RuntimeError)):
        hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run", fail)
    last = Journal(tmp_path / "run").verified()[0][-1]
    assert last["event"] == "stopped"
    assert last["reason"] == str(error)


@pytest.mark.parametrize("day", ["yesterday", "2026-13-99", "2026"])
def test_a_day_that_is_none_is_refused(day: str, run: Path) -> None:
    with pytest.raises(HoflError, match=r"is not a day. Give one such as"):
        audit(run, day)


def test_a_day_chooses_from_the_json_as_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, digest = Journal(run).verified()
    for day, expected in ((events[0]["time"][:10], events[:1]), ("1999-12-31", [])):
        audit(run, day, as_json=True)
        printed = json.loads(capsys.readouterr().out)
        assert (printed["events"][:1], printed["sha256"]) == (expected, digest)
    audit(run, "1999-12-31")
    assert "no event on 1999-12-31" in capsys.readouterr().out


def test_what_is_not_a_log_is_called_by_its_name(run: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(HoflError, match="is not a run"):
            Journal(path).verified()
    (tmp_path / "audit.jsonl").write_bytes(b"")
    with pytest.raises(HoflError, match="it was emptied"):
        Journal(tmp_path).verified()
    shutil.copy(run / "config.toml", tmp_path)
    (tmp_path / "audit.jsonl").unlink()
    with pytest.raises(HoflError, match=r"has no audit.jsonl: it was removed"):
        Journal(tmp_path).verified()
