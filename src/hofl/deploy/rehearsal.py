"""A whole fleet on this machine: real processes and messages, on loopback alone."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.core.sizes import AUTO, parse_bytes
from hofl.deploy.device import Enrolment, WorkerSettings
from hofl.deploy.engine import NetworkEngine
from hofl.deploy.processes import GRACE, Child, free_port, stop_all, undisturbed
from hofl.deploy.server import network_engine, prepared_server
from hofl.deploy.transport import DEFAULT, Endpoint
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.fleet import tiers_of
from hofl.experiment.launcher import Launcher
from hofl.experiment.resolved import with_secret
from hofl.experiment.rounds import Observer
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tasks import fleet_seed, resolved_task
from hofl.memory.device import FREE
from hofl.sampling.tiers import deal, deal_tiers


def sized(config: ExperimentConfig, devices: int) -> ExperimentConfig:
    """Return the configuration for so many devices; no cohort is larger than the fleet."""
    fleet = config.fleet.model_copy(
        update={"clients": devices, "cohort": min(config.fleet.cohort, devices)}
    )
    return config.model_copy(update={"fleet": fleet})


def rehearsal_launcher(
    memory: Sequence[str] = (), transport: str = DEFAULT
) -> Launcher[Experiment]:
    """Return how a run is launched with fleet.clients devices, each with its shard of the task.

    Args:
        memory: the devices' budgets, repeated as often as needed; without them, they get the
            configuration's budgets or boundaries.
        transport: how messages travel.
    """
    for amount in memory:
        parse_bytes(amount)
    endpoint = Endpoint(address=f"127.0.0.1:{free_port()}", transport=transport)

    def build(config: ExperimentConfig) -> Experiment:
        # All devices are one user's: the seed may be known, and the run can be repeated.
        experiment = prepared_server(endpoint, with_secret(config, "seed"))
        resolved_task(experiment.config)  # all devices are here: refuse now what they cannot read
        list(device_sizes(experiment, memory))
        return experiment

    @contextmanager
    def engine(
        experiment: Experiment, directory: RunDirectory, observe: Observer
    ) -> Iterator[NetworkEngine]:
        devices = [
            _device(number, size, experiment, directory.path / "network", endpoint)
            for number, size in enumerate(device_sizes(experiment, memory))
        ]
        logs = directory.path / "network" / "device-*" / "device.log"
        text = f"each device listens on a port of its own on 127.0.0.1: see {logs}"
        with network_engine(endpoint, experiment, directory, observe) as network, _started(devices):
            observe("device", {"text": text})
            yield network

    return Launcher(build, engine, "--resume")


def device_sizes(experiment: Experiment, memory: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each device's size: a budget, to plan its own boundary with, or a boundary.

    Budgets given here come first, in their order, then those of the configuration by tier.
    """
    config, blocks = experiment.config, experiment.layout.num_blocks
    fleet, seed = config.fleet, fleet_seed(config)
    if len(memory) > fleet.clients:
        raise HoflError(f"--memory lists {len(memory)} budgets for {fleet.clients} devices.")
    if memory:
        for number in range(fleet.clients):
            yield {"memory": memory[number % len(memory)]}
    elif tiers := tiers_of(fleet):
        name = "fleet.devices" if fleet.devices else "fleet.budgets"
        for tier in deal(tiers, fleet.clients, seed, name):
            limits = tier.model_dump(exclude={"memory"}, exclude_defaults=True)
            memory_of = {"memory": AUTO if tier.memory == FREE else tier.memory}
            yield {**memory_of, "limits": limits} if limits else memory_of
    else:
        for cut in deal_tiers(fleet.boundaries, fleet.clients, blocks, seed, "fleet.boundaries"):
            yield {"boundary": cut}


def _device(
    number: int, size: dict[str, Any], experiment: Experiment, folder: Path, endpoint: Endpoint
) -> Child:
    """Make the supervisor of one device; it is not started yet."""
    name, engine = f"device-{number}", experiment.config.engine
    settings = WorkerSettings(
        name=name, shard=number, device=engine.device, threads=engine.threads, **size
    )
    enrolment = Enrolment(
        settings,
        endpoint.address,
        (folder / name).resolve(),
        niceness=0,
        transport=endpoint.transport,
    )
    # It stops its own children first, and they have their time.
    return Child(
        name,
        enrolment.command,
        folder / name / "supervisor.log",
        dict(os.environ),
        grace=3 * GRACE,
    )


@contextmanager
def _started(children: Sequence[Child]) -> Iterator[None]:
    try:
        for child in children:
            child.start()
        yield
    finally:
        with undisturbed():
            stop_all(children)
