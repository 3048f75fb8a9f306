"""Start or resume a run on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.engines.in_process import InProcess
from hofl.engines.rounds import Engine, Observer, run_rounds
from hofl.engines.workers import WorkerPool
from hofl.errors import HoflError
from hofl.experiment.build import build
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
        return load_trained(self.adapter)


def run(
    config: ExperimentConfig, out: str | Path, observe: Observer = lambda event, facts: None
) -> Result:
    """Run an experiment into a new folder."""
    path = Path(out)
    check_new(path)
    return _train(config, path, observe, new=True)


def resume(path: str | Path, observe: Observer = lambda event, facts: None) -> Result:
    """Go on after the latest checkpoint; a finished run is returned as it is."""
    directory = RunDirectory.open(Path(path))
    finished = directory.summary()
    if finished is not None:
        return Result(directory.path, finished)
    return _train(directory.config(), directory.path, observe, new=False)


def _train(config: ExperimentConfig, path: Path, observe: Observer, *, new: bool) -> Result:
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    experiment = build(config)
    # Nothing is written before everything has been built and checked.
    directory = RunDirectory.create(path, experiment.config) if new else RunDirectory.open(path)
    engine: Engine
    if config.engine.workers == 1:
        engine = InProcess(experiment.client)
    else:
        engine = WorkerPool(experiment.config)
    try:
        return Result(path, run_rounds(experiment, engine, directory, observe))
    except OSError as error:
        raise HoflError(
            f"cannot write to {path}: {error.strerror}. Free space or move it."
        ) from error
    finally:
        engine.close()
