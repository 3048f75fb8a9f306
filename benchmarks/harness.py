"""What the subjects share: interleaved timing, a subject's rows, its table, the environment.

Variants that are compared run in turn, each once per repeat and in an order that rotates, so a
machine that slows down for a while slows all of them. No target is asserted.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.table import Table

Cell = str | float | None


@dataclass(frozen=True)
class Timing:
    """Seconds of every repeat of one variant."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the repeats."""
        return median(self.samples)

    @property
    def best(self) -> float:
        """The fastest repeat."""
        return min(self.samples)


@dataclass(frozen=True)
class Subject:
    """One subject's outcome.

    Args:
        name: key in the JSON file.
        title: headline of the table.
        columns: row key -> (headline, format of its numbers); rows may have more keys.
        rows: one mapping per line; absent cells stay empty.
        samples: variant -> seconds of every repeat, for whoever wants other statistics.
        targets: what the figures are held against.
    """

    name: str
    title: str
    columns: Mapping[str, tuple[str, str]]
    rows: Sequence[Mapping[str, Cell]]
    samples: Mapping[str, Sequence[float]]
    targets: Mapping[str, float]

    def table(self) -> Table:
        """The rows as a table."""
        table = Table(title=self.title, title_justify="left")
        for number, (headline, _) in enumerate(self.columns.values()):
            table.add_column(headline, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(_shown(row.get(k), form) for k, (_, form) in self.columns.items()))
        return table

    def to_json(self) -> dict[str, Any]:
        """Plain values for the JSON file."""
        return {
            "title": self.title,
            "targets": dict(self.targets),
            "rows": list(self.rows),
            "samples_in_seconds": dict(self.samples),
        }


def interleave(
    variants: Mapping[str, Callable[[], object]], repeats: int, *, loops: int = 1, warmups: int = 1
) -> dict[str, Timing]:
    """Seconds per call of every variant, all once per repeat, the order rotating.

    Args:
        variants: what to time, by name.
        repeats: samples per variant.
        loops: calls per sample, for calls too short to time singly.
        warmups: untimed rounds before the first.
    """
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(-warmups, repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            call = variants[name]
            start = time.perf_counter()
            for _ in range(loops):
                call()
            seconds = (time.perf_counter() - start) / loops
            if repeat >= 0:
                samples[name].append(seconds)
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def environment() -> dict[str, Any]:
    """Where the figures were taken."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def _shown(value: Cell, form: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)
