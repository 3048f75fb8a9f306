"""A run as a cell of a table: what it was made with, what it measured, and whether it is whole.

Reads run folders alone. A folder that cannot be read is a failed cell with its reason: the rest of
a table stands.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.experiment.changes import dotted
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.runs import RunDirectory, plain_values

COMPARISON = "comparison.toml"
"""The file that makes a folder a comparison (``hofl.comparing``)."""
VERSIONS = ("hofl", "torch", "transformers", "peft", "numpy")
# Neither what is trained on nor how: names, places, drawn by the seed, or without effect on scores.
_APART = {
    "name", "seed", "data.dir", "custom.train", "custom.test", "fleet.memory_trace",
    "engine.threads", "engine.workers", "engine.device", "evaluation.batch_size",
    "evaluation.every", "evaluation.curve_examples", "server.keep", "server.verify", "tracking.to",
    "evaluation.samples", "evaluation.rouge",
}  # fmt: skip
_CAPABLE = ("fleet.devices", "fleet.budgets")
_PLANNED = ("fleet.boundaries", "fleet.planned")
_DEALT = {"fleet.boundaries", *_CAPABLE}
"""Lists that are dealt to the clients by the seed: their order is not part of a setting."""
_TREATMENT = ("method.", "server.", "privacy.", "engine.")


@dataclass(frozen=True)
class Cell:
    """One run: a method with its options, and a seed.

    Args:
        path: its folder.
        label: what a comparison calls its row; empty for a run of its own.
        seed: of the run; None where it is not known.
        config: the resolved configuration with dotted keys; empty before the run has one.
        environment: versions, machine, commit and data that it was made with.
        records: its rounds so far.
        summary: of a finished run.
        problem: why it failed; empty if it did not.
        rounds: that it is to train, 0 where that is not known.
    """

    path: Path
    label: str = ""
    seed: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[RoundRecord] = ()
    summary: RunSummary | None = None
    problem: str = ""
    rounds: int = 0

    @property
    def state(self) -> str:
        """``finished``, ``failed``, ``unfinished`` or ``not started``."""
        if self.summary is not None:
            return "finished"
        if self.problem:
            return "failed"
        return "unfinished" if self.records else "not started"

    @property
    def setting(self) -> dict[str, Any]:
        """What must be equal for two cells to be compared: data, model, fleet, budget, code."""
        config = {k: v for k, v in self._made_with().items() if not k.startswith(_TREATMENT)}
        packages = self.environment.get("packages", {})
        made = {f"code.{name}": packages.get(name) for name in VERSIONS}
        data = {f"examples.{k}": v for k, v in self.environment.get("data", {}).items()}
        return {**config, **made, "code.commit": self.environment.get("git"), **data}

    @property
    def treatment(self) -> dict[str, Any]:
        """What is compared: the method, and how server, privacy and engine are set."""
        return {k: v for k, v in self._made_with().items() if k.startswith(_TREATMENT)}

    @property
    def digest(self) -> str:
        """Digest of everything but the seed that the cell was made with."""
        text = json.dumps([self.setting, self.treatment], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _made_with(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.config.items() if key not in _APART}
        if any(kept.get(key) for key in _CAPABLE):  # what they run was planned for a seed's data
            kept = {key: value for key, value in kept.items() if key not in _PLANNED}
        for key in _DEALT & kept.keys():
            kept[key] = sorted(kept[key], key=str)
        return kept


def read_cell(path: Path, label: str = "", seed: int | None = None) -> Cell:
    """Read a run's folder, damaged or not; one that does not exist is not started."""
    problem = ""
    config, rounds, records, summary = {}, 0, [], None
    try:
        run = RunDirectory.open(path)
        settled = run.config()
        config, seed, rounds = dotted(plain_values(settled)), settled.seed, settled.rounds
        records = run.metrics()
        summary = run.summary()
    except HoflError as error:
        problem = str(error) if path.exists() else ""
    return Cell(path, label, seed, config, _environment(path), records, summary, problem, rounds)


Read = Callable[[Path, str, int | None], Cell]
"""Reads a run's folder, given label and seed in a comparison: ``read_cell`` or a cache of it."""


def read_cells(paths: Sequence[Path], read: Read = read_cell) -> list[Cell]:
    """Read runs, comparisons, and folders that hold them, such as a recipe of the paper.

    Raises:
        HoflError: a folder holds none of them.
    """
    cells = [cell for path in paths for cell in _cells_of(path, read)]
    return list({cell.path.resolve(): cell for cell in cells}.values())


def holds_cells(path: Path) -> bool:
    """Return whether a folder is a run or a comparison."""
    return any((path / name).is_file() for name in (COMPARISON, "config.toml"))


def _cells_of(path: Path, read: Read) -> Iterator[Cell]:
    if (path / COMPARISON).is_file():
        yield from _compared(path, read)
    elif holds_cells(path):
        yield read(path, "", None)
    else:
        if not path.is_dir():
            raise HoflError(f"{path} is not a folder. Give that of a run or a comparison.")
        inner = sorted(filter(holds_cells, path.iterdir()))
        if not inner:
            raise HoflError(
                f"{path} is neither a run nor a comparison, and holds none. "
                "Make one with hofl run or hofl compare."
            )
        for folder in inner:
            yield from _cells_of(folder, read)


def _compared(path: Path, read: Read) -> Iterator[Cell]:
    """Yield every cell that a comparison is to have, in its order."""
    file = path / COMPARISON
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["cells"]
        planned = [(entry["name"], entry["label"], entry["seed"]) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        raise HoflError(f"{file} is damaged. Restore it, or compare into another folder.") from None
    for name, label, seed in planned:
        cell = read(path / "cells" / name, label, seed)
        reason = failure_of(path, name)
        if reason and cell.summary is None:
            cell = Cell(**{**vars(cell), "problem": reason})
        yield cell


def failure_of(comparison: Path, name: str) -> str:
    """Return why a cell of a comparison failed; empty if it did not."""
    try:
        return str(json.loads((comparison / "failed" / f"{name}.json").read_text())["reason"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "its reason cannot be read."


def _environment(path: Path) -> dict[str, Any]:
    try:
        values = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
