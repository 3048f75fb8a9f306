"""How a kind of run is built and carried out; the kind that simulates all clients here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hofl.engines.base import Engine
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.runs import RunDirectory

if TYPE_CHECKING:
    from hofl.engines.client import LocalClient
    from hofl.experiment.build import Experiment, Simulation
    from hofl.experiment.rounds import Observer

E = TypeVar("E", bound="Experiment")


@dataclass(frozen=True)
class Launcher(Generic[E]):
    """How one kind of run is built and carried out.

    Args:
        build: makes the experiment, and refuses what cannot work: nothing is written before.
        engine: opens the engine of an experiment in its run directory.
        resume_hint: what resumes such a run, with ``{path}`` for its folder.
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
    from hofl.catchup import held_by
    from hofl.engines.local import InProcess
    from hofl.engines.workers import WorkerPool

    engine = simulation.config.engine
    held = held_by(simulation.method, simulation.layout, simulation.start.w)
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
