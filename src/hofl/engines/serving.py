"""The server's side of a run on a network: start it, or go on with it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hofl.engines.flower import commands
from hofl.engines.flower.service import FlowerServices
from hofl.engines.launch import Result, readable_errors
from hofl.engines.network.bridge import Bridge
from hofl.engines.network.engine import NetworkEngine
from hofl.engines.network.gate import Gate
from hofl.engines.network.processes import (
    check_free,
    free_port,
    is_loopback,
    split_address,
    undisturbed,
)
from hofl.engines.network.registry import Registry
from hofl.engines.rounds import Observer, run_rounds
from hofl.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.remote import build_server
from hofl.experiment.runs import RunDirectory
from hofl.process import tune_allocator, use_threads
from hofl.secure.gateway import nginx
from hofl.secure.signatures import KeyRing


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens, and whom it lets in.

    Args:
        address: HOST:PORT.
        tls: folder of certificates; needed outside loopback. A gateway then listens at the
            address, and what is behind it stays on loopback.
        nodes: folder of the devices' public keys; needed with TLS.
    """

    address: str
    tls: Path | None = None
    nodes: Path | None = None

    def check(self) -> None:
        """Refuse an open door: without TLS and keys, only this machine may reach the server.

        What is missing is told here, before anything is written.
        """
        host, _ = split_address(self.address)
        if self.tls is None and not is_loopback(host):
            raise HoflError(
                f"{host} can be reached from outside, and whoever reaches it could read and change "
                "the training: give --tls DIR and --nodes DIR (hofl certs makes both), or use "
                "127.0.0.1."
            )
        if (self.tls is None) != (self.nodes is None):
            raise HoflError("--tls DIR and --nodes DIR belong together: devices prove their keys.")
        if self.tls is not None and self.nodes is not None:
            commands.Certificates(self.tls).check_server()
            commands.public_keys(self.nodes)
            nginx()


Beside = Callable[[Experiment], AbstractContextManager[None]]
"""What runs as long as the server does, such as the devices of a rehearsal.

It is made before the run's folder: what cannot work is refused with nothing written.
"""


def _alone(experiment: Experiment) -> AbstractContextManager[None]:
    return nullcontext()


def serve(
    config: ExperimentConfig,
    out: Path,
    endpoint: Endpoint,
    observe: Observer = lambda event, facts: None,
    beside: Beside = _alone,
) -> Result:
    """Run the server of a new network run until its last round."""
    with readable_errors(out):
        endpoint.check()
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise HoflError(f"{out} is not empty: choose another --out, or add --resume.")
        check_free(*split_address(endpoint.address))
        experiment = _prepared(config)
        company = beside(experiment)
        directory = RunDirectory.create(out, experiment.config)
        return _train(experiment, directory, endpoint, observe, company)


def serve_again(
    path: Path,
    endpoint: Endpoint,
    observe: Observer = lambda event, facts: None,
    beside: Beside = _alone,
) -> Result:
    """Go on with a network run after its latest checkpoint."""
    with readable_errors(path):
        endpoint.check()
        directory = RunDirectory.open(path)
        finished = directory.summary()
        if finished is not None:
            return Result(directory.path, finished)
        experiment = _prepared(directory.config())
        return _train(experiment, directory, endpoint, observe, beside(experiment))


def _prepared(config: ExperimentConfig) -> Experiment:
    commands.check_installed()
    tune_allocator()
    use_threads(config.engine.threads, 1)
    return build_server(config)


def _train(
    experiment: Experiment,
    directory: RunDirectory,
    endpoint: Endpoint,
    observe: Observer,
    company: AbstractContextManager[None],
) -> Result:
    with (
        directory.locked(),
        _engine(experiment, directory, endpoint, observe) as engine,
        company,
    ):
        return Result(directory.path, run_rounds(experiment, engine, directory, observe))


@contextmanager
def _engine(
    experiment: Experiment, directory: RunDirectory, endpoint: Endpoint, observe: Observer
) -> Iterator[NetworkEngine]:
    folder = directory.path / "network"
    folder.mkdir(exist_ok=True)
    # Unix sockets have short names: a private folder in the system's temporary one.
    with tempfile.TemporaryDirectory(prefix="hofl-") as private:
        services = _services(folder, endpoint, lambda text: observe("device", {"text": text}))
        engine = NetworkEngine(
            experiment,
            Bridge(Path(private) / "loop", services.healthy),
            services,
            Registry(folder / "devices.json"),
            before=_last_present(directory),
            keys=KeyRing(endpoint.nodes),
            observe=observe,
        )
        try:
            yield engine
        finally:
            with undisturbed():
                engine.close()


def _services(folder: Path, endpoint: Endpoint, notice: Callable[[str], None]) -> FlowerServices:
    if endpoint.tls is None:
        return FlowerServices(folder, *split_address(endpoint.address), notice=notice)
    # Flower's control interface shares the SuperLink's port and has no login: only devices get
    # through the gateway, and only to the fleet's own paths.
    port = free_port()
    gate = Gate(folder / "gateway", endpoint.address, port, endpoint.tls)
    tls = commands.Certificates(endpoint.tls)
    return FlowerServices(folder, "127.0.0.1", port, tls, endpoint.nodes, gate, notice)


def _last_present(directory: RunDirectory) -> Sequence[int]:
    """Who was there in the last recorded round: they are waited for after a resume."""
    rows = directory.metrics()
    return [int(client) for client in rows[-1].get("present", ())] if rows else []
