"""``hofl watch``: plain lines elsewhere, and a table on a real (pseudo) terminal until the end."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hofl.cli.watch import small_curve
from hofl.experiment.journal import Journal
from support.runs import run_cli
from support.written_runs import write_run

COMPARISON = """
[[cells]]
name = "fedavg-seed-5"
label = "fedavg"
seed = 5
[[cells]]
name = "hofl-seed-5"
label = "hofl"
seed = 5
[[cells]]
name = "decomfl-seed-5"
label = "decomfl"
seed = 5
[[cells]]
name = "mezo-seed-5"
label = "mezo"
seed = 5
"""


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A finished cell, one that is half-way, one that failed, one that waits."""
    (tmp_path / "comparison.toml").write_text(COMPARISON)
    write_run(tmp_path / "cells" / "fedavg-seed-5", "fedavg", 5, 0.7)
    write_run(tmp_path / "cells" / "hofl-seed-5", "hofl", 5, rounds=3)
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "decomfl-seed-5.json").write_text('{"reason": "no [memory] left"}')
    return tmp_path


def on_a_terminal(*words: str, columns: int = 80) -> tuple[subprocess.Popen[bytes], int]:
    """The command in a process of its own whose output is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm"}

    def as_from_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-m", "hofl.cli.main", "watch", *words]
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env=environment, preexec_fn=as_from_a_terminal
    )
    os.close(theirs)
    return process, ours


def read_until(ours: int, wanted: str | None = None) -> str:
    """What the terminal was sent, until a text or the end."""
    text = b""
    while wanted is None or wanted not in text.decode(errors="replace"):
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # how a pseudo-terminal ends
            break
        if not piece:
            break
        text += piece
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text.decode())


def test_lines_say_how_far_every_cell_is(comparison: Path) -> None:
    code, output = run_cli("watch", str(comparison))
    lines = output.splitlines()
    assert code == 0
    last = json.loads((comparison / "cells/fedavg-seed-5/metrics.jsonl").read_text().split("\n")[6])
    accuracy, loss = last["eval"]["accuracy"], last["train_loss"]
    assert (
        lines[0]
        == f"fedavg, seed 5: finished, accuracy {100 * accuracy:.1f} %, training loss {loss:.4f}"
    )
    # 3 rounds of 2.5 s are left; how much of the next one is done depends on the clock.
    assert re.fullmatch(
        r"hofl, seed 5: round 3 of 6, accuracy \S+ %, training loss \S+, about \d s left", lines[1]
    )
    assert lines[2:5] == [
        "decomfl, seed 5: failed",
        "mezo, seed 5: waiting",
        "decomfl, seed 5 failed: no [memory] left",
    ]
    assert re.fullmatch(r"1 finished, 1 running, 1 failed, 1 waiting; about \d+ s left", lines[5])


@pytest.mark.parametrize("state", ["empty", "stopped", "damaged", "missing", "a file"])
def test_each_kind_of_folder_has_one_clear_line(state: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    expected = {
        "empty": (0, "no run here yet"),
        "stopped": (0, f"run is stopped: interrupted; resume with hofl run --resume {run}"),
        "damaged": (0, f"run failed: {run}/metrics.jsonl is damaged in line 2, round 1."),
        "missing": (2, f"error: {run} is not a folder."),
        "a file": (2, f"error: {run} is not a folder."),
    }
    if state == "empty":
        run.mkdir()
    elif state == "a file":
        run.touch()
    elif state != "missing":
        write_run(run, "hofl", 5, rounds=3)
        Journal(run).append("stopped", {"reason": "KeyboardInterrupt"})
    if state == "damaged":
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(text.replace('"round": 1,', '"round": 8,', 1))
    code, output = run_cli("watch", str(run))
    assert code == expected[state][0]
    assert expected[state][1] in output
    assert len(output.splitlines()) <= 2
    assert "Traceback" not in output


def test_a_terminal_shows_a_table_that_fits_and_ends_with_the_runs(comparison: Path) -> None:
    process, ours = on_a_terminal(str(comparison))
    first = read_until(ours, "no [memory] left")
    assert "3/6" in first
    assert "█" in first
    write_run(comparison / "new", "hofl", 5)
    os.rename(comparison / "cells" / "hofl-seed-5", comparison / "old")
    os.rename(comparison / "new", comparison / "cells" / "hofl-seed-5")
    (comparison / "failed" / "mezo-seed-5.json").write_text('{"reason": "stopped by hand"}')
    text = first + read_until(ours)
    assert process.wait(60) == 0
    assert "2 finished, 2 failed" in text
    assert max(map(len, text.replace("\r", "\n").split("\n"))) <= 80
    os.close(ours)


def test_ctrl_c_ends_watching_and_says_that_runs_go_on(tmp_path: Path) -> None:
    process, ours = on_a_terminal(str(tmp_path))
    read_until(ours, "waiting for one")
    process.send_signal(signal.SIGINT)
    assert "the runs are not affected" in read_until(ours)
    assert process.wait(60) == 0
    os.close(ours)
    process, ours = on_a_terminal(str(tmp_path), "--serve", columns=200)
    assert re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", read_until(ours, "Ctrl-C"))
    process.send_signal(signal.SIGTERM)
    assert "the runs are not affected" in read_until(ours)
    assert process.wait(60) == 0
    os.close(ours)


def test_a_small_curve_has_the_ends_of_a_long_one() -> None:
    rising = [k / 1000 for k in range(1000)]
    drawn = small_curve(rising)
    assert len(drawn) == 16
    assert (drawn[0], drawn[-1]) == ("▁", "█")
    assert list(drawn) == sorted(drawn)
    assert small_curve([1.0, 0.0, 1.0], "_.-=*#") == "#_#"
