"""Whether a folder may become a run: it is new, or its run is resumed or replaced."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from hofl.core.durable import PARTIAL
from hofl.core.errors import HoflError
from hofl.experiment.changes import anchored, portable
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.runs import ASKED, SECRET, RunDirectory, plain_values
from hofl.experiment.section import Section

Exist = Literal["error", "resume", "replace"]
"""What to do with a run that is there already."""
REPLACED = ".replaced"
"""How the name of a run ends while another takes its place."""


def check_new(path: Path, resume: str) -> None:
    """Refuse a folder that already holds something; the command ``resume`` would resume it.

    What a start left that was killed before the folder became a run does not count.
    """
    if path.exists() and not path.is_dir():
        raise HoflError(f"{path} is a file. Choose another --out.")
    if path.exists() and not stillborn(path):
        raise HoflError(
            f"{path} exists and is not empty. Choose another --out, or resume it with {resume}"
        )


def stillborn(path: Path) -> bool:
    """Return whether a folder holds nothing but what comes before ``config.toml``."""
    before = {"environment.json", "plan.json", ASKED, SECRET, "checkpoint", f"checkpoint/{SECRET}"}
    before |= {"data", "data/train.jsonl", "data/test.jsonl"}
    names = {str(file.relative_to(path)).removesuffix(PARTIAL) for file in path.rglob("*")}
    return not (path / "config.toml").exists() and names <= before | {"config.toml"}


def holds_run(path: Path) -> bool:
    """Return whether a folder is a run, and not somebody's folder with a file of that name."""
    return all((path / name).is_file() for name in ("config.toml", "environment.json"))


def check_exist(exist: str) -> None:
    """Refuse an unknown word."""
    if exist not in get_args(Exist):
        known = ", ".join(map(repr, get_args(Exist)))
        raise HoflError(f"exist={exist!r}: choose one of {known}.")


def check_same(run: RunDirectory, config: ExperimentConfig) -> None:
    """Refuse to resume a run that was started with another configuration than this one.

    Raises:
        HoflError: it names the keys that differ.
    """
    asked = run.asked()
    if asked is None:
        raise HoflError(
            f"{run.path} has no {ASKED}, so whether it is this run is unknown: resume it by "
            f'hofl.resume("{run.path}"), or choose another out.'
        )
    keys = list(_differing(_rebased(asked, run.path), _rebased(config, run.path)))
    if keys:
        raise HoflError(
            f"{run.path} holds a run of another configuration: {', '.join(keys)} differ. Choose "
            'another out, or exist="replace".'
        )


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Move a run aside while another is created in its place; bring it back if that fails."""
    aside = path.with_name(path.name + REPLACED)
    with RunDirectory.open(path).locked():
        if aside.exists():  # left by a kill; a later run has taken its place since
            shutil.rmtree(aside)
        os.replace(path, aside)
    try:
        yield
    except BaseException:
        if path.exists():
            shutil.rmtree(path)
        os.replace(aside, path)
        raise
    shutil.rmtree(aside)


def _rebased(config: ExperimentConfig, folder: Path) -> ExperimentConfig:
    """Return the configuration with every path spelled in the same way."""
    return parse_config(anchored(portable(plain_values(config), folder), folder))


def _differing(first: Section, second: Section, prefix: str = "") -> Iterator[str]:
    for key in type(first).model_fields:
        ours, other = getattr(first, key), getattr(second, key)
        if isinstance(ours, Section) and isinstance(other, Section):
            yield from _differing(ours, other, f"{prefix}{key}.")
        elif ours != other:
            yield prefix + key
