"""Start or resume a run on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hofl.engines.in_process import InProcess
from hofl.engines.rounds import Engine, Observer, run_rounds, train_until
from hofl.engines.workers import WorkerPool
from hofl.errors import HoflError
from hofl.experiment.build import Experiment, build
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory, check_new
from hofl.models.adapters import load_trained
from hofl.process import tune_allocator, use_threads


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        path: the run directory.
        summary: what ``summary.json`` says.
    """

    path: Path
    summary: dict[str, Any]

    @property
    def adapter(self) -> Path:
        """Folder of the trained adapter."""
        return self.path / "adapter"

    def load(self) -> Any:
        """The trained model, loaded by ``transformers`` and ``peft`` alone."""
        if RunDirectory(self.path).config().model.weights == "random":
            raise HoflError("the run trained on random weights, and only its adapter was kept.")
        return load_trained(self.adapter)


def run(
    config: ExperimentConfig, out: str | Path, observe: Observer = lambda event, facts: None
) -> Result:
    """Run an experiment into a new folder."""
    with readable_errors(Path(out)):
        check_new(Path(out), "hofl run")
        experiment = prepared(config)
        # Nothing is written before everything has been built and checked.
        directory = RunDirectory.create(Path(out), experiment.config)
        if experiment.memory_plan:
            directory.write_plan(experiment.memory_plan)
            observe("plan", experiment.memory_plan)
        return _train(experiment, directory, observe)


def resume(path: str | Path, observe: Observer = lambda event, facts: None) -> Result:
    """Go on after the latest checkpoint; a finished run is returned as it is."""
    with readable_errors(Path(path)):
        directory = RunDirectory.open(Path(path))
        finished = directory.summary()
        if finished is not None:
            return Result(directory.path, finished)
        return _train(prepared(directory.config()), directory, observe)


def advance(
    config: ExperimentConfig,
    path: Path,
    last: int,
    observe: Observer = lambda event, facts: None,
) -> list[dict[str, Any]]:
    """Train a new or a stopped run up to round ``last`` and leave it there; its rows so far.

    Left runs are ordinary ones: ``resume`` takes them to their last round, to the same bits as if
    they had never stopped.
    """
    with readable_errors(path):
        if (path / "config.toml").is_file():
            directory = RunDirectory.open(path)
            rows = directory.metrics()
            if rows and rows[-1]["round"] >= last:
                return rows[: last + 1]
            experiment = prepared(directory.config())
        else:
            experiment = prepared(config)
            directory = RunDirectory.create(path, experiment.config)
        with _engine(experiment, directory) as engine:
            train_until(experiment, engine, directory, observe, last)
        return directory.metrics()


def prepared(config: ExperimentConfig) -> Experiment:
    """What a configuration names, in a process set up as the configuration says."""
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    return build(config)


def _train(experiment: Experiment, directory: RunDirectory, observe: Observer) -> Result:
    with _engine(experiment, directory) as engine:
        return Result(directory.path, run_rounds(experiment, engine, directory, observe))


@contextmanager
def _engine(experiment: Experiment, directory: RunDirectory) -> Iterator[Engine]:
    """The configured engine, while nobody else works on the run."""
    engine: Engine
    with directory.locked():
        if experiment.config.engine.workers == 1:
            engine = InProcess(experiment.client)
        else:
            engine = WorkerPool(experiment.config)
        try:
            yield engine
        finally:
            engine.close()


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is told in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HoflError(
            f"cannot use {path}: {reason}. Choose another place or free space."
        ) from None
