"""The README's table: what the demo's runs say, never typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from demo_table import collected, table

from hofl.cli.run import DEMO
from hofl.experiment.runs import RunDirectory
from support.written_runs import ROUNDS, write_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    for name, level in zip(DEMO, (0.75, 0.7, 0.65, 0.6), strict=True):
        write_run(tmp_path / name, "hofl" if name == "plan" else name, 7, level)
    return tmp_path


def test_the_table_is_what_the_committed_rows_say() -> None:
    words = [sys.executable, str(ROOT / "tools" / "demo_table.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_rows_are_read_from_the_runs_of_the_demo(demo: Path) -> None:
    lines = list(table(json.loads(json.dumps(collected(demo)))))
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| hofl's plan",
        "| FedAvg",
        "| HO-FL (beta 0)",
        "| frozen bottom",
    ]
    for line, name in zip(lines[2:6], DEMO, strict=True):
        summary = RunDirectory.open(demo / name).summary()
        assert summary is not None
        before, after = (
            f"{100 * scores['accuracy']:.1f} %" for scores in (summary.initial, summary.final)
        )
        assert line.split(" | ")[1:3] == [before, after]
        for size in (min(summary.peak_by_boundary.values()), summary.peak_bytes):
            assert size is not None
            assert f"{size / 2**20:.1f}" in line or f"{size / 2**20:.2f}" in line


def test_an_unfinished_demo_is_one_line_that_names_what_is_missing(demo: Path) -> None:
    (demo / "hofl").rename(demo / "elsewhere")
    write_run(demo / "fedavg-2", "fedavg", 7, rounds=ROUNDS - 1).rename(demo / "hofl")
    with pytest.raises(SystemExit, match=r"hofl \(unfinished\): finish it with make demo"):
        collected(demo)
