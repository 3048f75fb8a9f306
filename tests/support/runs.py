"""Configurations of quick runs, and how a run's result is compared bit for bit."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from hofl import ExperimentConfig
from hofl.cli.main import main
from hofl.experiment.config import parse_config
from hofl.methods import SHORT, nested

OPTIMIZER = {"optimizer", *(key for key, (table, _) in SHORT.items() if table == "optimizer")}


def quick(folder: Path, **changes: Any) -> ExperimentConfig:
    """A small fleet on a tiny model; ``changes`` are sections or top-level values."""
    values: dict[str, Any] = {
        "rounds": 3,
        "seed": 5,
        "model": {"name": str(folder)},
        "adapter": {"rank": 2, "alpha": 4},
        "task": {"batch_size": 4, "max_length": 48},
        "fleet": {"clients": 6, "cohort": 3, "boundaries": [1, 2, 3]},
        "method": {"name": "hofl", "optimizer": {"lr": 1e-2}, "local_steps": 2},
        "engine": {"threads": 1},
        "evaluation": {"batch_size": 50},
        "server": {"secret": "seed"},  # a network run then has the bits of a simulated one
    }
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    given = nested(changes.get("method", {})).get("optimizer", {})
    table = {"name": given} if isinstance(given, str) else given
    method = {key: value for key, value in values["method"].items() if key not in OPTIMIZER}
    values["method"] = nested({**method, "optimizer": {"lr": 1e-2, **table}})
    return parse_config(values)


def own_files(folder: Path, train: Path, test: Path, **changes: Any) -> ExperimentConfig:
    """The same on own files with the columns ``text`` and ``kind``, which is a or b."""
    custom = {
        "train": str(train),
        "test": str(test),
        "template": "Message: {text}\nTopic:",
        "cut": "text",
        "label_column": "kind",
        "labels": {"a": "delivery", "b": "billing"},
    }
    return quick(folder, task={"name": "custom"}, custom=custom, **changes)


def adapter_bytes(run: Path) -> bytes:
    """The trained adapter's file, byte for byte."""
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


def start_cli(*words: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "hofl.cli.main", *words]

    def as_from_a_terminal() -> None:
        # A test run started in the background passes an ignored Ctrl-C on to its children.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=as_from_a_terminal,
    )


def run_cli(*words: str) -> tuple[int, str]:
    """Exit code and output of the command line, in this process: what it loads is loaded once."""
    output = io.StringIO()
    stops = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            redirect_stdout(output),
            redirect_stderr(output),
            patch.object(sys, "argv", ["hofl", *words]),
            patch.object(sys, "unraisablehook", sys.unraisablehook),
            pytest.raises(SystemExit) as end,
        ):
            main()
    finally:
        for number, handler in stops.items():
            signal.signal(number, handler)
    code = end.value.code
    return code if isinstance(code, int) else 0, output.getvalue()


def run_process(*words: str, timeout: float = 900) -> tuple[int, str]:
    """The same in a process of its own."""
    process = start_cli(*words)
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def stop_at(last: int) -> Callable[[str, Any], None]:
    """Return an observer that stops a run, as Ctrl-C does, when this round is recorded."""

    def stop(event: str, facts: Any) -> None:
        if event == "round" and facts["round"] == last:
            raise KeyboardInterrupt

    return stop
