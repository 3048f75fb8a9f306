"""What a comparison consists of: one cell for every method, grid point and seed.

COMPARISON/comparison.toml   seeds, the list of cells, and, as [run], the base configuration
COMPARISON/cells/NAME/       one run directory per cell
COMPARISON/failed/NAME.json  why a cell failed
COMPARISON/logs/NAME.log     what a cell's process wrote
COMPARISON/table.json        the table, written whenever a cell ends

Within a seed, cells share the split of the data, the initial adapter, the fleet, and the random
numbers that cohorts are drawn by: equal sampling marginals give equal cohorts.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import tomli_w

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.core.process import usable_cores
from hofl.experiment.changes import in_order, override
from hofl.experiment.config import ExperimentConfig, checked_method, method_of, parse_config
from hofl.experiment.reuse import check_new
from hofl.experiment.runs import plain_values
from hofl.reporting.cells import COMPARISON

HELD_OUT = 0.1
"""Share of every client's examples that is held out to choose from a grid, unless one is given."""


@dataclass(frozen=True)
class Arm:
    """A row of the table: its label, and the changes that make it from the base configuration."""

    label: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """A cell: its name, its row's label, its seed, and its complete configuration."""

    name: str
    label: str
    seed: int
    config: ExperimentConfig

    @property
    def rounds(self) -> int:
        """T, how many rounds it trains."""
        return self.config.rounds


def arms_of(methods: Sequence[str], grid: Mapping[str, Sequence[str]]) -> list[Arm]:
    """Return every method at every point of the grid.

    Args:
        methods: names, each with changes to its options behind colons:
            ``recompute:uplink_bits=4``.
        grid: values by key of the configuration, such as ``method.optimizer.lr``.
    """
    arms = []
    for method in methods:
        name, *options = method.split(":")
        keys = tuple(f"method.{option}" for option in options)
        for point in product(*([f"{key}={v}" for v in values] for key, values in grid.items())):
            shown = [item.removeprefix("method.") for item in (*keys, *point)]
            arms.append(Arm(" ".join([name, *shown]), (f"method.name={name}", *keys, *point)))
    return arms


def changed(base: ExperimentConfig, changes: Sequence[str]) -> ExperimentConfig:
    """Return the configuration with ``key=value`` changes applied, and its method checked."""
    values = plain_values(base)
    for item in in_order(changes):
        override(values, item)
    return checked_method(parse_config(values))


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder.

    Args:
        path: the folder.
        base: the configuration that arms change.
        arms: rows of the table.
        seeds: of every row.
    """

    path: Path
    base: ExperimentConfig
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]

    @property
    def cells(self) -> list[Planned]:
        """All cells; seeds go round first, so that a stopped comparison has whole rounds of them.

        Raises:
            HoflError: a configuration is wrong, or two rows would be one.
        """
        configs = {arm.label: changed(self.base, arm.changes) for arm in self.arms}
        _check_distinct(configs)
        return [
            Planned(cell_name(label, seed), label, seed, config.model_copy(update={"seed": seed}))
            for seed in self.seeds
            for label, config in configs.items()
        ]

    def write(self) -> None:
        """Check everything and write the folder; one with another base configuration is refused.

        Seeds and rows may be added to a comparison, and left out: finished cells are kept.
        """
        cells = self.cells
        file = self.path / COMPARISON
        if file.is_file():
            before = plain_values(Comparison.open(self.path).base)
            differing = list(_differing(before, plain_values(self.base)))
            if differing:
                raise HoflError(
                    f"{self.path} compares another configuration: {', '.join(differing)} differ. "
                    "Choose another --out."
                )
        else:
            check_new(self.path, f"hofl compare --resume {self.path}")
        values: dict[str, Any] = {
            "seeds": list(self.seeds),
            "arms": [{"label": arm.label, "changes": list(arm.changes)} for arm in self.arms],
            "cells": [{"name": c.name, "label": c.label, "seed": c.seed} for c in cells],
            "run": plain_values(self.base),
        }
        for folder in (self.path, *(self.path / name for name in ("cells", "failed", "logs"))):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, tomli_w.dumps(values))

    @classmethod
    def open(cls, path: Path) -> "Comparison":
        """Read a comparison's folder."""
        file = path / COMPARISON
        if not file.is_file():
            raise HoflError(f"{path} is not a comparison: it has no {COMPARISON}.")
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
            arms = tuple(Arm(arm["label"], tuple(arm["changes"])) for arm in values["arms"])
            return cls(path, parse_config(values["run"]), arms, tuple(values["seeds"]))
        except (ValueError, KeyError, TypeError):
            raise HoflError(
                f"{file} is damaged. Restore it, or compare into another folder."
            ) from None


def planned(
    config: ExperimentConfig,
    path: Path,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    grid: Mapping[str, Sequence[str]],
) -> Comparison:
    """Return a comparison with its threads and held-out share settled; nothing is written.

    ``seeds`` is a list, or how many to count from the configuration's own.
    """
    if isinstance(seeds, int):
        seeds = range(config.seed, config.seed + seeds)
    for name, given in (("methods", methods), ("seeds", seeds), *grid.items()):
        if not given or len(set(given)) != len(given):
            raise HoflError(f"{name}: give at least one value, and none twice, got {list(given)}.")
    arms = arms_of(methods, grid)
    evaluation = config.evaluation
    if _chooses(grid) and not evaluation.holdout:
        evaluation = evaluation.model_copy(update={"holdout": HELD_OUT})
    base = with_threads(
        config.model_copy(update={"evaluation": evaluation}), len(arms) * len(seeds)
    )
    return Comparison(path, base, tuple(arms), tuple(seeds))


def with_threads(config: ExperimentConfig, cells: int) -> ExperimentConfig:
    """Return the configuration with the threads of each of so many cells, unless it states them.

    They are settled before any cell runs: bits must not hang on how many run at a time.
    """
    if config.engine.threads:
        return config
    share = usable_cores() // min(cells, usable_cores())
    engine = config.engine.model_copy(update={"threads": max(1, share)})
    return config.model_copy(update={"engine": engine})


def most_at_once(config: ExperimentConfig) -> int:
    """Return how many cells the cores allow; one where a GPU or workers are shared."""
    engine = config.engine
    alone = engine.workers > 1 or engine.device not in ("auto", "cpu")
    if alone or Path("/dev/nvidia0").exists():
        return 1
    return max(1, usable_cores() // engine.threads)


def _chooses(grid: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a grid gives a method several rows in one setting."""
    return any(key.startswith("method.") and len(values) > 1 for key, values in grid.items())


def cell_name(label: str, seed: int) -> str:
    """Return the name of a cell's folder.

    >>> cell_name("hofl optimizer.lr=0.01", 7)
    'hofl-optimizer.lr=0.01-seed-7'
    """
    return re.sub(r"[^\w.=+-]+", "-", f"{label}-seed-{seed}")


def _check_distinct(configs: Mapping[str, ExperimentConfig]) -> None:
    """Refuse rows that would train the same thing under two names, or share a folder."""
    seen: dict[str, str] = {}
    for label, config in configs.items():
        text = repr(_trained(config))
        if text in seen:
            raise HoflError(
                f"{seen[text]!r} and {label!r} are the same run in this configuration, which sets "
                "the options in which they would differ. Remove those options, or one of the two."
            )
        seen[text] = label
    names = [cell_name(label, 0) for label in configs]
    if len(set(names)) != len(names):
        raise HoflError("two rows would have the same folder: change the values of the grid.")


def _trained(config: ExperimentConfig) -> tuple[Any, ...]:
    """Return what a configuration trains: its method with all options, and everything else."""
    values = plain_values(config)
    del values["method"]
    try:
        return vars(method_of(config)) | {"summary": ""}, values
    except HoflError:  # options of a file of statistics, which is read when the run starts
        return config.method, values


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*first, *second}):
        if first.get(key) != second.get(key):
            yield key
