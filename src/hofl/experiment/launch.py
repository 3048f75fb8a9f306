"""Start, resume or advance a run: one sequence for every engine.

Nothing heavy is loaded before it is known that something has to be trained.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from safetensors import SafetensorError

from hofl.core.errors import HoflError, reason_of
from hofl.engines.base import Engine
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.journal import Journal
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.runs import RunDirectory, check_new

if TYPE_CHECKING:
    from hofl.engines.client import LocalClient
    from hofl.experiment.build import Experiment, Simulation
    from hofl.experiment.rounds import Observer


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        path: the run directory.
        record: its summary, typed.
    """

    path: Path
    record: RunSummary

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``."""
        return self.record.to_json()

    @property
    def adapter(self) -> Path:
        """Folder of the trained adapter."""
        return self.path / "adapter"

    def load(self) -> Any:
        """Load the trained model, by ``transformers`` and ``peft`` alone.

        Raises:
            HoflError: a file of the adapter is not as it was written.
        """
        from hofl.models.adapters import load_trained
        from hofl.models.loading import resolve_reference

        run = RunDirectory(self.path)
        model = run.config().model
        if run.finished() is None:
            raise HoflError(f"{self.path} has no result. Resume the run: it writes one at its end.")
        if model.weights == "random":
            raise HoflError("the run trained on random weights, and only its adapter was kept.")
        return load_trained(self.adapter, resolve_reference(model.name))


E = TypeVar("E", bound="Experiment")


@dataclass(frozen=True)
class Launcher(Generic[E]):
    """How one kind of run is built and carried out.

    Args:
        build: makes the experiment, and refuses what cannot work: nothing is written before.
        engine: opens the engine of an experiment in its run directory.
        resume_hint: the command that resumes such a run, with ``{path}`` for its folder.
    """

    build: Callable[[ExperimentConfig], E]
    engine: Callable[[E, RunDirectory, "Observer"], AbstractContextManager[Engine]]
    resume_hint: str


def prepared(config: ExperimentConfig) -> "Simulation":
    """Set up this process as the configuration says, and build what it names."""
    from hofl.core.process import tune_allocator, use_threads
    from hofl.experiment.build import build_simulation

    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    return build_simulation(config)


@contextmanager
def local_engine(
    simulation: "Simulation", directory: RunDirectory, observe: "Observer"
) -> Iterator[Engine]:
    """Open the configured engine of this machine."""
    from hofl.catchup import HeldModels, catches_up
    from hofl.engines.local import InProcess
    from hofl.engines.workers import WorkerPool

    engine, layout = simulation.config.engine, simulation.layout
    held = HeldModels(layout) if catches_up(simulation.method, layout) else None
    if engine.workers == 1:
        yield InProcess(simulation.client, held)
        return
    values = simulation.config.model_dump(mode="json")
    pool = WorkerPool(partial(worker_client, values), engine.workers, held)
    try:
        yield pool
    finally:
        pool.close()


LOCAL = Launcher(prepared, local_engine, "hofl run --resume {path}")
"""All clients are simulated on this machine."""


def run(
    config: ExperimentConfig,
    out: str | Path,
    observe: "Observer" = lambda event, facts: None,
    launcher: Launcher[Any] = LOCAL,
) -> Result:
    """Run an experiment into a new folder."""
    path = Path(out)
    with readable_errors(path):
        check_new(path, launcher.resume_hint.format(path=path))
        experiment, directory = _created(config, path, launcher)
        if experiment.memory_plan:
            observe("plan", experiment.memory_plan)
        return _trained(experiment, directory, observe, launcher)


def resume(
    path: str | Path,
    observe: "Observer" = lambda event, facts: None,
    launcher: Launcher[Any] = LOCAL,
    from_round: int | None = None,
) -> Result:
    """Resume a run after its latest checkpoint; a finished run is returned as it is.

    With ``from_round`` it goes on from the checkpoint of that round, finished or not: the last
    ``server.keep`` are kept. What came after is forgotten.
    """
    with readable_errors(Path(path)):
        directory = RunDirectory.open(Path(path))
        if from_round is not None:
            from hofl.experiment.checkpoint import return_to

            with directory.locked():
                return_to(directory, from_round)
                Journal(directory.path).append("returned", {"round": from_round})
        finished = directory.finished()
        if finished is not None:
            return Result(directory.path, finished)
        return _trained(_reopened(directory, launcher), directory, observe, launcher)


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
            audited(directory, observe) as seen,
            launcher.engine(experiment, directory, seen) as engine,
        ):
            train_until(experiment, engine, directory, seen, last)
        return directory.metrics()


def worker_client(values: dict[str, Any], rank: int) -> "LocalClient":
    """Make the client of one process in a pool of workers, from a configuration's plain values."""
    import torch

    from hofl.core.process import tune_allocator, use_threads
    from hofl.experiment.build import build_simulation
    from hofl.models.loading import resolve_device

    config = parse_config(values)
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    device = resolve_device(config.engine.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank % torch.cuda.device_count())
    return build_simulation(config, device=str(device)).client


def _created(config: ExperimentConfig, path: Path, launcher: Launcher[E]) -> tuple[E, RunDirectory]:
    """Build and check everything, then write the run's folder."""
    experiment = launcher.build(config)
    directory = RunDirectory.create(
        path, experiment.config, experiment.secret, experiment.memory_plan, _data(experiment)
    )
    return experiment, directory


def _data(experiment: "Experiment") -> dict[str, str]:
    """Return the digest of every set of examples that this process has."""
    from hofl.data.store import digest_of

    sets = {"train": getattr(experiment, "train", None), "test": experiment.test}
    return {name: digest_of(s.examples) for name, s in sets.items() if s is not None}


def _reopened(directory: RunDirectory, launcher: Launcher[E]) -> E:
    """Build the experiment of an existing run, with the secret that it was started with."""
    secret = directory.secret()  # before anything heavy is loaded
    return replace(launcher.build(directory.config()), secret=secret)


def _trained(
    experiment: E, directory: RunDirectory, observe: "Observer", launcher: Launcher[E]
) -> Result:
    from hofl.experiment.rounds import run_rounds

    with (
        audited(directory, observe) as seen,
        launcher.engine(experiment, directory, seen) as engine,
    ):
        return Result(directory.path, run_rounds(experiment, engine, directory, seen))


@contextmanager
def audited(directory: RunDirectory, observe: "Observer") -> Iterator["Observer"]:
    """Lock a run, remove what a kill left, and write down what happens inside."""
    journal = Journal(directory.path)
    with directory.locked():
        directory.sweep()
        try:
            yield journal.watching(observe, directory.metrics)
        except BaseException as error:
            with suppress(OSError):  # a full disk, say, which is what stopped the run
                journal.stopped(error)
            raise


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
