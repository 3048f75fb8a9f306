"""A whole fleet on this machine: real processes and messages, on loopback alone."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hofl.engines.launch import Result
from hofl.engines.network.processes import GRACE, Child, free_port, stop_all, undisturbed
from hofl.engines.rounds import Observer
from hofl.engines.serving import Endpoint, serve, serve_again
from hofl.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.tasks import fleet_seed, resolved_task
from hofl.planning.available import FREE
from hofl.planning.sizes import AUTO, parse_bytes
from hofl.sampling.tiers import deal, deal_tiers


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
        memory: the devices' budgets, repeated as often as needed; without them, they get the
            configuration's budgets or boundaries.
        resume: go on with the run in ``out``, by its own configuration.
        observe: told what happens.
    """
    for amount in memory:
        parse_bytes(amount)
    endpoint = Endpoint(address=f"127.0.0.1:{free_port()}")

    def devices(experiment: Experiment) -> AbstractContextManager[None]:
        return _running(_devices(experiment, out, endpoint.address, memory))

    if resume:
        return serve_again(out, endpoint, observe, devices)
    return serve(config, out, endpoint, observe, devices)


@contextmanager
def _running(children: Sequence[Child]) -> Iterator[None]:
    try:
        for child in children:
            child.start()
        yield
    finally:
        with undisturbed():
            stop_all(children)


def _devices(experiment: Experiment, out: Path, server: str, memory: Sequence[str]) -> list[Child]:
    engine, children = experiment.config.engine, []
    resolved_task(experiment.config)  # all devices are here: what they cannot read is told now
    for number, size in enumerate(_sizes(experiment, memory)):
        home = out / "network" / f"device-{number}"
        words = [sys.executable, "-m", "hofl.cli.main", "device", "--server", server, *size]
        words += ["--shard", str(number), "--name", f"device-{number}", "--home", str(home)]
        words += ["--threads", str(engine.threads), "--nice", "0", "--device", engine.device]
        children.append(_child(number, words, home))
    return children


def _sizes(experiment: Experiment, memory: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What each device is told of itself: a budget, to plan its own boundary with, or a boundary.

    Budgets given here come first, in their order, then those of the configuration by tier.
    """
    config, blocks = experiment.config, experiment.layout.num_blocks
    fleet, seed = config.fleet, fleet_seed(config)
    if len(memory) > fleet.clients:
        raise HoflError(f"--memory lists {len(memory)} budgets for {fleet.clients} devices.")
    if memory:
        for number in range(fleet.clients):
            yield "--memory", memory[number % len(memory)]
    elif fleet.budgets:
        for budget in deal(fleet.budgets, fleet.clients, seed, "fleet.budgets"):
            yield "--memory", AUTO if budget == FREE else budget
    else:
        for cut in deal_tiers(fleet.boundaries, fleet.clients, blocks, seed, "fleet.boundaries"):
            yield "--boundary", str(cut)


def _child(number: int, words: Sequence[str], home: Path) -> Child:
    environment, log = dict(os.environ), home / "supervisor.log"
    # It stops its own children first, and they have their time.
    return Child(f"device-{number}", lambda: words, log, environment, grace=3 * GRACE)
