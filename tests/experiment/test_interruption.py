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
from support.runs import adapter_bytes, quick, run_cli, run_process, start_cli

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


def frozen(
    config: ExperimentConfig, workers: int, folder: Path, rounds: int
) -> tuple[subprocess.Popen[str], Path]:
    """A run that was halted (SIGSTOP) somewhere after this many rounds, and its folder.

    Where it was quicker than the look at its records, another one is started.
    """
    for attempt in range(10):
        run = folder / f"run-{attempt}"
        process = start(config, workers, run)
        while process.poll() is None and len(RunDirectory(run).metrics()) <= rounds:
            time.sleep(0.005)
        time.sleep(0.05)  # to land inside a round
        process.send_signal(signal.SIGSTOP)
        if not (run / "summary.json").exists():
            assert process.poll() is None, process.communicate()[0]
            return process, run
        process.kill()
        process.communicate()
    raise AssertionError("no run could be caught before its end")


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_in_a_round_then_resume_ends_in_the_same_bits(
    config: ExperimentConfig, expected: bytes, tmp_path: Path, workers: int
) -> None:
    process, run = frozen(config, workers, tmp_path, 3)
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


def test_ctrl_c_stops_cleanly_and_can_be_resumed(
    config: ExperimentConfig, expected: bytes, tmp_path: Path
) -> None:
    process, run = frozen(config, 2, tmp_path, 2)
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert f"hofl run --resume {run}" in output
    assert "Traceback" not in output
    _assert_gone(children)
    code, output = run_process("run", "--resume", str(run))
    assert code == 0, output
    assert adapter_bytes(run) == expected


@pytest.mark.parametrize(
    ("words", "library"),
    [
        (["run", "demo", "--out"], "numpy"),
        (["server", "demo", "--out"], "torch.autograd"),
        (["fleet", "demo", "--out"], "hofl.experiment.launcher"),
        (["device", "--server", "127.0.0.1:9092", "--shard", "0", "--home"], "typer"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_ctrl_c_while_libraries_are_loaded_is_one_line(
    words: list[str], library: str, tmp_path: Path
) -> None:
    """Python itself reports, on standard error, what it has loaded."""
    command = [sys.executable, "-X", "importtime", "-m", "hofl.cli.main", *words]
    process = subprocess.Popen(
        [*command, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rsplit("|", 1)[-1].strip() == library:
            process.send_signal(signal.SIGINT)
            break
    else:
        raise AssertionError(f"{library} is no longer loaded by hofl {words[0]}: name another")
    output, errors = process.communicate(timeout=300)
    # Reading stopped inside the report, so its next line may have lost its beginning.
    lines = [line for line in errors.splitlines() if " | " not in line]
    lines += output.splitlines()
    assert (process.returncode, len(lines)) == (130, 1), lines
    assert lines[0] in ("stopped", "stopped; nothing was written")
    assert not (tmp_path / "out").exists()


def test_a_stop_inside_an_exec_keeps_the_exit_code(tmp_path: Path) -> None:
    """Python would end by SIGINT: it takes an interrupt that left an ``exec`` for unhandled."""
    (tmp_path / "typer.py").write_text(
        'exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")'
    )
    process = subprocess.run(
        [sys.executable, "-m", "hofl.cli.main", "methods"],
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (process.returncode, process.stderr, process.stdout) == (130, "stopped\n", "")


# A library whose import runs a destructor, during which a signal arrives.
SWALLOWING = """
import os, sys
from hofl.cli.main import main

number, library = int(sys.argv[1]), sys.argv[2]
sys.argv = ["hofl", *sys.argv[3:]]

class Dying:
    def __del__(self):
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass  # the handler runs in here, and what it raises ends nothing

class Finder:
    def find_spec(self, name, path, target=None):
        if name == library:
            sys.meta_path.remove(self)
            Dying()

sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.parametrize(
    ("library", "number"),
    [
        ("typer", signal.SIGINT),
        ("typer", signal.SIGTERM),
        ("torch", signal.SIGTERM),
        ("transformers.models.llama.modeling_llama", signal.SIGINT),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_stop_that_a_destructor_swallows_is_not_lost(
    library: str, number: signal.Signals, config: ExperimentConfig, tmp_path: Path
) -> None:
    run, source = tmp_path / "run", tmp_path / "config.toml"
    source.write_text(tomli_w.dumps(config.model_dump(exclude_none=True)))
    words = [str(number.value), library, "run", str(source), "--out", str(run)]
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWING, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == 130, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if not line.startswith("note: ")]
    if library.startswith("transformers."):  # loaded with the model, before the run's folder
        assert line == f"stopped; resume with: hofl run --resume {run}"
        assert len(RunDirectory(run).metrics()) <= 1
    else:
        assert line in ("stopped", "stopped; nothing was written")
        assert not run.exists()


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
    deadline = time.monotonic() + 600
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
