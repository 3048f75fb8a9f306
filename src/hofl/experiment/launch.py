"""Start, resume or advance a run: one sequence for every engine.

Nothing heavy is loaded before it is known that something has to be trained.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from hofl.core.errors import HoflError, reason_of
from hofl.core.process import leave_if_imported_again
from hofl.experiment.callbacks import ProgressBar
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.events import Callback
from hofl.experiment.journal import Journal
from hofl.experiment.launcher import LOCAL, E, Launcher
from hofl.experiment.observing import observed
from hofl.experiment.records import RoundRecord
from hofl.experiment.result import Result
from hofl.experiment.reuse import Exist, check_exist, check_new, check_same, holds_run, replaced
from hofl.experiment.runs import RunDirectory
from hofl.tracking.trackers import makers

if TYPE_CHECKING:
    from hofl.data.own_rows import Owners
    from hofl.experiment.build import Experiment
    from hofl.experiment.handover import Source
    from hofl.experiment.rounds import Observer

SPLIT_STATE = "server.state"
"""In the checkpoints of a split run (``hofl split``): the state of its server."""


def run(
    config: ExperimentConfig,
    out: str | Path,
    observe: "Observer" = lambda event, facts: None,
    launcher: Launcher[Any] = LOCAL,
    *,
    train: "Source | None" = None,
    test: "Source | None" = None,
    clients: "str | Owners | None" = None,
    exist: Exist = "error",
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Run an experiment into a folder.

    Args:
        config: what to run.
        out: the run's folder.
        observe: called as the run proceeds (``hofl.experiment.rounds.Observer``).
        launcher: how the run is carried out.
        train: rows of your own, as of ``hofl.with_data``; they are written into the run's folder,
            so that it can be resumed, evaluated and moved.
        test: the same for the examples to evaluate on.
        clients: the client of each training row, as of ``hofl.with_data``.
        exist: what to do with a run that is in the folder already: ``error`` refuses it, ``resume``
            continues it if it was started with the same configuration and data (a finished one is
            returned as it is), ``replace`` removes it when the new run has been created.
        callbacks: hear of the run by typed events (``hofl.experiment.events``).
        progress: whether to show a bar; unset, in a terminal and in a notebook only.

    Raises:
        HoflError: a mistake that the user can fix; nothing was written.
    """
    leave_if_imported_again()
    check_exist(exist)
    path, handed = Path(out), {"train": train, "test": test, "clients": clients}
    with readable_errors(path):
        there = holds_run(path)
        if there and exist == "resume":
            with _given(config, path, handed) as given:
                check_same(RunDirectory.open(path), given)
            return resume(path, observe, launcher, callbacks=callbacks, progress=progress)
        with replaced(path) if there and exist == "replace" else nullcontext():
            check_new(path, launcher.resume_hint.format(path=path))
            with _given(config, path, handed) as given:
                experiment, directory = _created(given, path, launcher)
        if experiment.memory_plan:
            observe("plan", experiment.memory_plan)
        with _watched(callbacks, progress) as watching:
            return _trained(experiment, directory, observe, launcher, watching)


def resume(
    path: str | Path,
    observe: "Observer" = lambda event, facts: None,
    launcher: Launcher[Any] = LOCAL,
    from_round: int | None = None,
    rounds: int | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Resume a run after its latest checkpoint; a finished run is returned as it is.

    With ``from_round`` it continues from the checkpoint of that round, finished or not: the last
    ``server.keep`` are kept. What came after is forgotten. With ``rounds`` it is extended first
    (``hofl.experiment.extension``), unless it has that many already.
    """
    leave_if_imported_again()
    with readable_errors(Path(path)):
        directory = RunDirectory.open(Path(path))
        if from_round is not None:
            from hofl.experiment.checkpoint import return_to

            with directory.locked():
                return_to(directory, from_round)
                Journal(directory.path).append("returned", {"round": from_round})
        if rounds is not None and rounds != directory.config().rounds:
            from hofl.experiment.extension import extend

            with directory.locked():
                extend(directory, rounds)
        finished = directory.finished()
        if finished is not None:
            return Result(directory.path, finished)
        with _watched(callbacks, progress) as watching:
            experiment = _reopened(directory, launcher)
            return _trained(experiment, directory, observe, launcher, watching)


def advance(
    config: ExperimentConfig,
    path: Path,
    last: int,
    observe: "Observer" = lambda event, facts: None,
    launcher: Launcher[Any] = LOCAL,
) -> list[RoundRecord]:
    """Train a new or a stopped run up to round ``last`` and leave it there; return its rows.

    Such runs are ordinary ones: ``resume`` takes them to their last round, to the same bits as if
    they had never stopped.
    """
    from hofl.experiment.rounds import train_until

    with readable_errors(path):
        if (path / "config.toml").is_file():
            directory = RunDirectory.open(path)
            rows = directory.metrics()
            if rows and rows[-1].round >= last:
                return rows[: last + 1]
            experiment = _reopened(directory, launcher)
        else:
            experiment, directory = _created(config, path, launcher)
        with (
            observed(directory, experiment.config, observe) as seen,
            launcher.engine(experiment, directory, seen) as engine,
        ):
            train_until(experiment, engine, directory, seen, last)
        return directory.metrics()


@contextmanager
def _given(
    config: ExperimentConfig, path: Path, handed: dict[str, Any]
) -> Iterator[ExperimentConfig]:
    """Write what is handed over into a run's folder; remove it if no run comes of it."""
    if not any(source is not None for source in handed.values()):
        yield config
        return
    from hofl.experiment.handover import DATA, python_places, with_data

    folder, fresh = path.resolve() / DATA, not path.exists()
    try:
        with python_places(folder):
            yield with_data(config, folder, **handed)
    except BaseException:
        if not holds_run(path):
            shutil.rmtree(path if fresh else folder, ignore_errors=True)
        raise


def _created(config: ExperimentConfig, path: Path, launcher: Launcher[E]) -> tuple[E, RunDirectory]:
    """Build and check everything, then write the run's folder."""
    makers(config.tracking.to)  # what is missing is said before anything is written
    experiment = launcher.build(config)
    directory = RunDirectory.create(
        path,
        experiment.config,
        experiment.secret,
        experiment.memory_plan,
        _data(experiment),
        asked=config,
    )
    return experiment, directory


def _data(experiment: "Experiment") -> dict[str, str]:
    """Return the digest of every set of examples that this process has."""
    from hofl.data.store import digest_of

    sets = {"train": getattr(experiment, "train", None), "test": experiment.test}
    return {name: digest_of(s.examples) for name, s in sets.items() if s is not None}


def _reopened(directory: RunDirectory, launcher: Launcher[E]) -> E:
    """Build the experiment of an existing run, with the secret that it was started with."""
    if (directory.checkpoint / SPLIT_STATE).exists():
        raise HoflError(
            f"{directory.path} is a split run: resume it with hofl split --resume {directory.path}"
        )
    secret, config = directory.secret(), directory.config()  # before anything heavy is loaded
    makers(config.tracking.to)
    directory.check_rows()
    return replace(launcher.build(config), secret=secret)


@contextmanager
def _watched(callbacks: Sequence[Callback], progress: bool | None) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks and, if it is wanted, a bar that is closed whatever happens."""
    if not ProgressBar.wanted(progress):
        yield callbacks
        return
    bar = ProgressBar()
    try:
        yield [*callbacks, bar]
    finally:
        bar.close()


def _trained(
    experiment: E,
    directory: RunDirectory,
    observe: "Observer",
    launcher: Launcher[E],
    callbacks: Sequence[Callback],
) -> Result:
    from hofl.experiment.calling import calling
    from hofl.experiment.rounds import run_rounds

    if callbacks:
        observe = calling(callbacks, experiment, directory, observe)
    with (
        observed(directory, experiment.config, observe) as seen,
        launcher.engine(experiment, directory, seen) as engine,
    ):
        return Result(directory.path, run_rounds(experiment, engine, directory, seen))


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line that names the file or folder at fault."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise HoflError(_blame(error, path)) from None


def _blame(error: Exception, path: Path) -> str:
    """Blame the run's folder, unless the error is a library's own or names a file elsewhere."""
    strerror, filename = getattr(error, "strerror", None), getattr(error, "filename", None)
    if isinstance(error, OSError) and strerror is None:
        return reason_of(error)
    if isinstance(filename, str):
        file, folder = Path(filename).absolute(), path.absolute()
        if not file.is_relative_to(folder) and not folder.is_relative_to(file):
            return f"cannot use {filename}: {strerror}. Restore it, then resume the run."
    return f"cannot use {path}: {strerror or reason_of(error)}. Choose another place or free space."
