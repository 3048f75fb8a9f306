"""A whole fleet on this machine: real processes and messages, on loopback alone."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hofl.engines.launch import Result
from hofl.engines.network.processes import GRACE, Child, free_port, stop_all, undisturbed
from hofl.engines.rounds import Observer
from hofl.engines.serving import Endpoint, serve, serve_again
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tasks import fleet_seed
from hofl.planning.sizes import parse_bytes
from hofl.sampling.tiers import deal_tiers


def sized(config: ExperimentConfig, devices: int) -> ExperimentConfig:
    """The configuration for so many devices; no more of them are drawn than there are."""
    fleet = config.fleet.model_copy(
        update={"clients": devices, "cohort": min(config.fleet.cohort, devices)}
    )
    return config.model_copy(update={"fleet": fleet})


def rehearse(
    config: ExperimentConfig,
    out: Path,
    *,
    memory: Sequence[str] = (),
    resume: bool = False,
    observe: Observer = lambda event, facts: None,
) -> Result:
    """Train with fleet.clients devices, each with its shard of the task.

    Args:
        config: as for a run on one machine.
        out: folder of the run.
        memory: the devices' budgets, repeated as often as needed; without them they get the
            configuration's boundaries.
        resume: go on with the run in ``out`` if there is one.
        observe: told what happens.
    """
    for amount in memory:
        parse_bytes(amount)
    endpoint = Endpoint(address=f"127.0.0.1:{free_port()}")

    @contextmanager
    def devices(experiment: Experiment, directory: RunDirectory) -> Iterator[None]:
        children = _devices(experiment, directory, endpoint.address, memory)
        try:
            for child in children:
                child.start()
            yield
        finally:
            with undisturbed():
                stop_all(children)

    if resume and (out / "config.toml").is_file():
        return serve_again(out, endpoint, observe, devices)
    return serve(config, out, endpoint, observe, devices)


def _devices(
    experiment: Experiment, directory: RunDirectory, server: str, memory: Sequence[str]
) -> list[Child]:
    config = experiment.config
    fleet, blocks = config.fleet, experiment.layout.num_blocks
    cuts = deal_tiers(fleet.boundaries, fleet.clients, blocks, fleet_seed(config), "boundaries")
    children = []
    for number in range(fleet.clients):
        home = directory.path / "network" / f"device-{number}"
        home.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "hofl.cli.main", "device", "--server", server]
        words += ["--shard", str(number), "--name", f"device-{number}", "--home", str(home)]
        words += ["--threads", str(config.engine.threads), "--nice", "0"]
        words += ["--device", config.engine.device]
        if memory:
            words += ["--memory", memory[number % len(memory)]]
        else:
            words += ["--boundary", str(cuts[number])]
        children.append(_child(number, words, home))
    return children


def _child(number: int, words: Sequence[str], home: Path) -> Child:
    environment, log = dict(os.environ), home / "supervisor.log"
    # It stops its own children first, and they have their time.
    return Child(f"device-{number}", lambda: words, log, environment, grace=3 * GRACE)
