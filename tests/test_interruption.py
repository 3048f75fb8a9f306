"""Killed, stopped and resumed runs end in the same bits as uninterrupted ones."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

import hofl
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from runs import adapter_bytes, quick, run_cli, start_cli

ROUNDS = 12


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> ExperimentConfig:
    return quick(tiny_folder, rounds=ROUNDS, fleet={"cohort": 5}, method={"local_steps": 4})


@pytest.fixture(scope="module")
def expected(config: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    result = hofl.run(config, tmp_path_factory.mktemp("whole") / "run")
    return adapter_bytes(result.path)


def start(config: ExperimentConfig, workers: int, run: Path) -> subprocess.Popen[str]:
    """The run in a process of its own, with this many workers."""
    engine = config.engine.model_copy(update={"workers": workers})
    source = run.with_suffix(".toml")
    chosen = config.model_copy(update={"engine": engine})
    source.write_text(tomli_w.dumps(chosen.model_dump(exclude_none=True)))
    return start_cli("run", str(source), "--out", str(run))


def wait_for_rounds(process: subprocess.Popen[str], run: Path, rounds: int) -> None:
    """Until the metrics hold this many rounds; then some more, to land inside a round."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(RunDirectory(run).metrics()) > rounds:
            time.sleep(0.05)
            return
        time.sleep(0.005)
    raise AssertionError(f"the run ended early: {process.communicate()[0]}")


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_in_a_round_then_resume_ends_in_the_same_bits(
    config: ExperimentConfig, expected: bytes, tmp_path: Path, workers: int
) -> None:
    run = tmp_path / "run"
    process = start(config, workers, run)
    wait_for_rounds(process, run, 3)
    children = _children(process.pid)
    process.kill()
    process.communicate()
    assert not (run / "summary.json").exists()
    _assert_gone(children)
    # A line that was being written when the power went.
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 99, "coh')
    code, output = run_cli("run", "--resume", str(run))
    assert code == 0, output
    assert adapter_bytes(run) == expected
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))


@pytest.mark.parametrize("workers", [2])
def test_ctrl_c_stops_cleanly_and_can_be_resumed(
    config: ExperimentConfig, expected: bytes, tmp_path: Path, workers: int
) -> None:
    run = tmp_path / "run"
    process = start(config, workers, run)
    wait_for_rounds(process, run, 2)
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert f"hofl run --resume {run}" in output
    assert "Traceback" not in output
    _assert_gone(children)
    code, output = run_cli("run", "--resume", str(run))
    assert code == 0, output
    assert adapter_bytes(run) == expected


@pytest.mark.parametrize(
    ("words", "library"),
    [
        (["run", "demo", "--out"], "numpy"),
        (["server", "demo", "--out"], "torch.autograd"),
        (["fleet", "demo", "--out"], "hofl.engines.launch"),
        (["device", "--server", "127.0.0.1:9092", "--shard", "0", "--home"], "typer"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_ctrl_c_while_libraries_are_loaded_is_one_line(
    words: list[str], library: str, tmp_path: Path
) -> None:
    """Python itself tells, on standard error, what it has loaded."""
    command = [sys.executable, "-X", "importtime", "-m", "hofl.cli.main", *words]
    process = subprocess.Popen(
        [*command, str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rsplit("|", 1)[-1].strip() == library:
            process.send_signal(signal.SIGINT)
            break
    _, left = process.communicate(timeout=60)
    said = [line for line in left.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, said) == (130, ["stopped"])
    assert not (tmp_path / "out").exists()


def test_resuming_a_finished_run_shows_it_and_changes_nothing(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    hofl.run(config.model_copy(update={"rounds": 1}), run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code, output = run_cli("run", "--resume", str(run))
    assert code == 0
    assert "hofl" in output
    assert "sampling audit: " in output
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def _children(pid: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return [int(word) for word in listing.stdout.split()]


def _assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"left behind: {[p for p in pids if _alive(p)]}"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"
