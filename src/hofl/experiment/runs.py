"""The run directory: the contract between run, resume, report and tests.

RUN/config.toml        the complete resolved configuration
RUN/environment.json   versions, machine, git commit
RUN/plan.json          where boundaries were chosen for memory budgets: the costs they come from
RUN/metrics.jsonl      one object per round; round 0 is the start
RUN/checkpoint/        latest server state, written atomically
RUN/adapter/           the result, an ordinary PEFT adapter
RUN/summary.json       final metrics and totals; written last
"""

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hofl.errors import HoflError
from hofl.experiment.config import ExperimentConfig, read_config


@dataclass(frozen=True)
class ServerState:
    """w_t and t: all that a run carries from round to round."""

    w: Tensor
    round: int


@dataclass(frozen=True)
class RunDirectory:
    """Reads and writes one run's files."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: ExperimentConfig) -> "RunDirectory":
        """Start a new run; an existing one is never overwritten."""
        check_new(path, "hofl run")
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        text = config_text(config)
        write_whole(path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        write_whole(path / "config.toml", text)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run."""
        if not (path / "config.toml").is_file():
            raise HoflError(f"{path} is not a run: it has no config.toml. Start one with hofl run.")
        return cls(path)

    def config(self) -> ExperimentConfig:
        """The run's resolved configuration."""
        return read_config(str(self.path / "config.toml"))

    @property
    def adapter(self) -> Path:
        """Folder of the trained adapter."""
        return self.path / "adapter"

    def record(self, row: dict[str, Any]) -> None:
        """Append one round to the metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process can work on this run."""
        with (self.path / "config.toml").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HoflError(
                    f"another process is working on {self.path}. Wait for it."
                ) from None
            yield

    def metrics(self) -> list[dict[str, Any]]:
        """All rounds recorded so far; a line cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        rows = []
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or not isinstance(row.get("round"), int):
                break
            rows.append(row)
        return rows

    def forget_after(self, round_number: int) -> None:
        """Drop rounds recorded but not checkpointed: they will be run again."""
        rows = [row for row in self.metrics() if row["round"] <= round_number]
        if [row["round"] for row in rows] != list(range(round_number + 1)):
            raise HoflError(
                f"{self.path / 'metrics.jsonl'} is damaged: it does not hold rounds 0 to "
                f"{round_number} of the checkpoint. Start the run again with another --out."
            )
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def save_state(self, state: ServerState, layout_digest: str) -> None:
        """Write the checkpoint so that a kill leaves either the old or the new one."""
        folder = self.path / "checkpoint"
        folder.mkdir(exist_ok=True)
        fresh = folder / "state.tmp"
        save_file({"w": state.w}, fresh, {"round": str(state.round), "layout": layout_digest})
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(fresh, folder / "state.safetensors")
        _sync(folder)

    def load_state(self, layout_digest: str) -> ServerState | None:
        """The latest checkpoint, or None before the first."""
        path = self.path / "checkpoint" / "state.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                fields, w = file.metadata(), file.get_tensor("w").clone()
                digest, round_number = fields["layout"], int(fields["round"])
        except (SafetensorError, KeyError, TypeError, ValueError):
            raise HoflError(f"{path} is damaged. Start the run again with another --out.") from None
        if digest != layout_digest:
            raise HoflError(f"{path} belongs to a model with other trainable parameters.")
        return ServerState(w, round_number)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """How the boundaries were chosen."""
        write_whole(self.path / "plan.json", json.dumps(plan, indent=2) + "\n")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """The last file of a run: when it is there, the run is finished."""
        write_whole(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        path = self.path / "summary.json"
        try:
            return json.loads(path.read_bytes()) if path.exists() else None
        except ValueError:
            raise HoflError(f"{path} is damaged. Delete it and resume the run.") from None


def config_text(config: ExperimentConfig) -> str:
    """The configuration as TOML that ``read_config`` takes."""
    return tomli_w.dumps(config.model_dump(mode="python", exclude_none=True))


def check_new(path: Path, command: str) -> None:
    """Refuse a folder that already holds something; ``command --resume`` would go on with it."""
    if path.exists() and not path.is_dir():
        raise HoflError(f"{path} is a file. Choose another --out.")
    if path.exists() and any(path.iterdir()):
        raise HoflError(
            f"{path} exists and is not empty. Choose another --out, or go on with "
            f"{command} --resume {path}"
        )


def environment() -> dict[str, Any]:
    """What the numbers were made with."""
    packages = ("hofl", "torch", "transformers", "peft", "numpy", "safetensors")
    return {
        "packages": {name: version(name) for name in packages},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "git": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the source tree the package runs from, with a mark when it was changed."""
    here = Path(__file__)
    if not _git(here.parent, "ls-files", here.name):
        return None  # installed, perhaps inside somebody else's repository
    return _git(here.parent, "describe", "--always", "--dirty") or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once: after a power cut it holds the old text or the new one."""
    fresh = path.with_suffix(path.suffix + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make the renaming of a file inside durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
