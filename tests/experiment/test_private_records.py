"""A private run never forgets what its devices have revealed, whatever is damaged or repaired.

Oracle: the participations of all rounds that were ever asked for, counted by hand.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.records import RoundRecord
from hofl.experiment.repair import repair
from hofl.experiment.runs import RunDirectory
from hofl.server.accounting import epsilon
from support.runs import quick, stop_at

PRIVACY = {"noise": 1.0, "scalar_clip": 0.5, "difference_clip": 0.1}
RELEASES = 3
"""Of one participation: the scalars of two steps, and the difference."""


@pytest.fixture(scope="module")
def stopped(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped after round 3; the start and every round have a checkpoint."""
    path = tmp_path_factory.mktemp("private") / "stopped"
    with pytest.raises(KeyboardInterrupt):
        hofl.run(
            quick(tiny_folder, rounds=4, privacy=PRIVACY, server={"keep": 4}), path, stop_at(3)
        )
    return path


@pytest.fixture(scope="module")
def finished(stopped: Path) -> Path:
    path = stopped.with_name("finished")
    shutil.copytree(stopped, path)
    return hofl.resume(path).path


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def contents(run: Path) -> dict[Path, bytes]:
    """All but the audit log, which may say that a resume was stopped."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "audit.jsonl")
    return {path: path.read_bytes() for path in files}


def damage(run: Path, line: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    lines[line] = lines[line].replace(b'"seconds": ', b'"seconds": 1')
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines))


def cut_off(run: Path, line: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:line]))


def ruin_checkpoints(run: Path) -> None:
    for path in (run / "checkpoint").glob("state*"):
        path.write_bytes(path.read_bytes()[:-1])


def check_refused(run: Path, line: int, *actions: Callable[[], Any]) -> None:
    before = contents(run)
    for action in actions:
        with pytest.raises(HoflError, match=f"record of round {line}, .* privacy spent is unknown"):
            action()
        assert contents(run) == before, "a refusal changes nothing"


@pytest.mark.parametrize("line", [1, 2, 3])
@pytest.mark.parametrize("harm", [damage, cut_off])
def test_without_the_record_of_a_round_it_goes_neither_on_nor_back(
    line: int, harm: Callable[[Path, int], None], run: Path
) -> None:
    """An earlier checkpoint is sound, but what the lost round revealed would not be counted."""
    harm(run, line)
    goes_back = [partial(hofl.resume, run, from_round=n) for n in (0, 2)]
    check_refused(run, line, lambda: repair(run), lambda: hofl.resume(run), *goes_back)


@pytest.mark.parametrize("line", [1, 3])
def test_nor_does_it_start_again(line: int, run: Path) -> None:
    damage(run, line)
    ruin_checkpoints(run)
    check_refused(run, line, lambda: repair(run))


def test_a_damaged_record_after_the_latest_checkpoint_counts_as_well(run: Path) -> None:
    """As after a kill between the record and the checkpoint of round 3."""
    shutil.move(run / "checkpoint/state-2.safetensors", run / "checkpoint/state.safetensors")
    damage(run, 3)
    check_refused(run, 3, lambda: repair(run), lambda: hofl.resume(run))


def test_a_finished_one_is_repaired_but_goes_back_no_more(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    damage(run, 2)
    assert repair(run) == ["placeholders stand for the lost records of rounds 2"]
    assert hofl.resume(run).summary == hofl.resume(finished).summary
    check_refused(run, 2, lambda: hofl.resume(run, from_round=3))


def check_all_counted(before: list[RoundRecord], again: int, run: Path) -> None:
    """Rounds from ``again`` on were trained twice."""
    rows = RunDirectory(run).metrics()
    asked = Counter(client for row in before for client in row.participations)
    asked.update(client for row in rows[again:] for client in row.cohort)
    assert asked == Counter(client for row in rows for client in row.participations)
    spent, delta = hofl.resume(run).summary["epsilon"], RunDirectory(run).config().privacy.delta
    assert spent["largest"] == epsilon(1.0, RELEASES * max(asked.values()), delta)


def test_one_that_starts_again_counts_what_was_revealed(run: Path) -> None:
    before = RunDirectory(run).metrics()
    ruin_checkpoints(run)
    assert repair(run) == ["no checkpoint is sound: a resume starts from round 0"]
    assert repair(run) == []
    hofl.resume(run)
    check_all_counted(before, 1, run)


@pytest.mark.parametrize("last", [0, 1])
def test_one_that_goes_back_counts_what_was_revealed(last: int, run: Path) -> None:
    before = RunDirectory(run).metrics()
    hofl.resume(run, from_round=last)
    check_all_counted(before, last + 1, run)
