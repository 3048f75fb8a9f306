"""A comparison killed half-way: nothing finished is redone, failures are shown, bits are equal."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

import hofl
from hofl.comparing.plan import Comparison
from hofl.comparing.schedule import CellPool, Progress, carry_out
from hofl.core.errors import HoflError
from hofl.experiment.runs import config_text
from hofl.reporting.rows import Group
from support.runs import adapter_bytes, quick, run_cli, start_cli

DIVERGES = "hofl:optimizer.weight_decay=0.0:optimizer.lr=1e9"
Ended = tuple[list[Group], list[Progress], dict[str, int]]


@pytest.fixture(scope="module")
def killed(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three cells whose process was killed when one of them was finished."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "base.toml").write_text(config_text(quick(tiny_folder, rounds=2)))
    words = [str(folder / "base.toml"), "--methods", f"hofl,fedavg,{DIVERGES}"]
    words += ["--seeds", "1", "--at-once", "1", "--out", str(folder / "c")]
    process = start_cli("compare", *words)
    assert process.stdout is not None
    for line in process.stdout:
        if "finished (1 of 3 cells)" in line:
            break
    else:
        pytest.fail("ended without a finished cell")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return folder / "c"


@pytest.fixture(scope="module")
def ended(killed: Path) -> Ended:
    """The same comparison carried to its end, two cells at a time; times of the finished files."""
    time.sleep(1)  # the cell that was running ends with its parent
    before = times(killed / "cells" / "hofl-seed-5")
    seen: list[Progress] = []
    groups = carry_out(Comparison.open(killed), 2, seen.append)
    assert times(killed / "cells" / "hofl-seed-5") == before, "nothing finished is redone"
    return groups, seen, before


def times(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_a_killed_comparison_continues_with_what_is_left(ended: Ended) -> None:
    groups, seen, before = ended
    assert any("summary.json" in path for path in before)
    assert seen[0].done == ["hofl-seed-5"]
    assert max(len(progress.running) for progress in seen) == 2
    assert seen[-1].running == {}
    assert sorted(seen[-1].done) == ["fedavg-seed-5", "hofl-seed-5"]
    assert [row.label for row in groups[0].rows] == ["hofl", "fedavg", DIVERGES.replace(":", " ")]


def test_cells_have_the_bits_of_ordinary_runs(ended: Ended, killed: Path, tmp_path: Path) -> None:
    """Killed in between, one at a time or two: as when each is run by itself."""
    for cell in Comparison.open(killed).cells[:2]:
        alone = hofl.run(cell.config, tmp_path / cell.name)
        assert adapter_bytes(killed / "cells" / cell.name) == adapter_bytes(alone.path)


def test_a_failed_cell_is_shown_with_its_reason_and_the_rest_stands(
    ended: Ended, killed: Path
) -> None:
    groups, seen, _ = ended
    (reason,) = seen[-1].failed.values()
    assert "learning rate" in reason
    failed = groups[0].rows[2]
    assert [cell.state for cell in failed.cells] == ["failed"]
    assert failed.cells[0].problem == reason
    assert failed.spread("score") is None
    table = json.loads((killed / "table.json").read_text())
    states = [row["cells"][0]["state"] for row in table["groups"][0]["rows"]]
    assert states == ["finished", "finished", "failed"]
    assert all(0 <= row.values("score")[5] <= 1 for row in groups[0].rows[:2])


def test_a_finished_comparison_is_shown_without_training(
    ended: Ended, killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the failed cell would be tried again; here no process may start at all."""

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be trained")

    monkeypatch.setattr(CellPool, "_start", refuse)
    whole = Comparison.open(killed)
    Comparison(whole.path, whole.base, whole.arms[:2], whole.seeds).write()
    (group,) = carry_out(Comparison.open(killed), 1, lambda progress: None)
    assert [row.complete for row in group.rows] == [True, True]
    whole.write()


def test_memory_decides_how_many_run(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first round its peak is known, and the next cell waits until that much is free."""
    rounds = {"a": 0}
    monkeypatch.setattr("hofl.comparing.schedule.memory_left", lambda: iter([10]))
    monkeypatch.setattr("hofl.comparing.plan.usable_cores", lambda: 4)
    pool = CellPool(Comparison.open(killed), None)
    monkeypatch.setattr(pool, "_rounds", rounds.__getitem__)
    assert pool._may_start(), "the first one always"
    pool._running["a"] = None  # type: ignore[assignment]
    pool._largest = 7
    assert not pool._may_start(), "its peak is not known yet"
    rounds["a"] = 1
    assert pool._may_start()
    pool._largest = 9
    assert not pool._may_start(), "1.25 x 9 > 10"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo"], "give a configuration and --out DIR"),
        (["--resume", "/no/where"], "is not a comparison"),
        (["demo", "--out", "x", "--resume", "y"], "--resume takes everything"),
        (["demo", "--out", "/dev/null/x"], "cannot use /dev/null/x"),
        (["demo", "--out", "x", "--seeds", "1,"], "write whole numbers"),
        (["demo", "--out", "x", "--grid", "method.q"], "write key=value,value"),
        (["demo", "--out", "x", "--grid", "method.q=1,,2"], "a value between commas is empty"),
        (["demo", "--out", "x", "--grid", "method.w=1,2"], "unknown key 'method.w'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words: list[str], message: str) -> None:
    code, output = run_cli("compare", *words)
    assert code == 2
    assert message in " ".join(output.split())
    assert "Traceback" not in output
    assert not Path("x").exists()


def test_at_least_one_cell_at_a_time(killed: Path) -> None:
    with pytest.raises(HoflError, match="at_once must be at least 1"):
        carry_out(Comparison.open(killed), 0, lambda progress: None)
