"""One cell in a process of its own: run it or resume it; a failure is written down, not raised."""

import json
import os
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError, reason_of
from hofl.core.process import end_with


def run_cell(comparison: Path, name: str, values: Mapping[str, Any], parent: int) -> None:
    """Train a cell from its configuration's plain values up to its end."""
    from hofl.experiment.config import parse_config
    from hofl.experiment.launch import resume, run

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with(parent)  # the run can be resumed
    log = os.open(log_of(comparison, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    folder = comparison / "cells" / name
    try:
        if (folder / "config.toml").is_file():
            resume(folder)
        else:
            run(parse_config(dict(values)), folder)
    except HoflError as error:
        note_failure(comparison, name, str(error))
    except Exception as error:
        traceback.print_exc()
        where = f"see {log_of(comparison, name)}"
        note_failure(comparison, name, f"{type(error).__name__}: {reason_of(error)} ({where})")


def note_failure(comparison: Path, name: str, reason: str) -> None:
    """Write down why a cell failed."""
    write_whole(_failure(comparison, name), json.dumps({"reason": reason}) + "\n")


def forget_failure(comparison: Path, name: str) -> None:
    """Remove the reason of an earlier failure: the cell is tried again."""
    _failure(comparison, name).unlink(missing_ok=True)


def log_of(comparison: Path, name: str) -> Path:
    """Return the file that a cell's process writes to."""
    return comparison / "logs" / f"{name}.log"


def _failure(comparison: Path, name: str) -> Path:
    return comparison / "failed" / f"{name}.json"
