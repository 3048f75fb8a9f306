"""The server's side of a run on a network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hofl.core.process import tune_allocator, use_threads
from hofl.deploy.engine import NetworkEngine
from hofl.deploy.keys import KeyRing
from hofl.deploy.processes import check_free, split_address
from hofl.deploy.renewal import ExpiryWatch, server_certificates
from hofl.deploy.roster import Registry
from hofl.deploy.transport import Endpoint, find_transport
from hofl.experiment.build import Experiment, build_server
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.launcher import Launcher
from hofl.experiment.rounds import Observer
from hofl.experiment.runs import RunDirectory, config_text


def server_launcher(endpoint: Endpoint) -> Launcher[Experiment]:
    """Return how a run is launched whose devices connect to this endpoint."""
    return Launcher(
        partial(prepared_server, endpoint), partial(network_engine, endpoint), "--resume"
    )


def prepared_server(endpoint: Endpoint, config: ExperimentConfig) -> Experiment:
    """Check the endpoint, set up this process, and build the server's part of a run."""
    endpoint.check()
    check_free(*split_address(endpoint.address))
    tune_allocator()
    use_threads(config.engine.threads, 1)
    return build_server(config)


@contextmanager
def network_engine(
    endpoint: Endpoint, experiment: Experiment, directory: RunDirectory, observe: Observer
) -> Iterator[NetworkEngine]:
    """Open the engine of devices that connect to the endpoint; its files are in RUN/network."""
    folder = directory.path / "network"
    folder.mkdir(exist_ok=True)

    def notice(text: str) -> None:
        observe("device", {"text": text})

    certificates = [] if endpoint.tls is None else [endpoint.tls]
    watch = ExpiryWatch(
        lambda: [path for tls in certificates for path in server_certificates(tls)],
        f"hofl certs {endpoint.tls} --renew, then restart the server and copy to the devices",
        notice,
    )

    def idle() -> None:
        watch.look()
        observe("waiting", {})

    limits = experiment.config.server
    with find_transport(endpoint.transport).hub(folder, endpoint, notice) as hub:
        yield NetworkEngine(
            hub,
            Registry(folder / "devices.json"),
            run_config=config_text(experiment.config),
            layout=experiment.layout,
            clients=experiment.config.fleet.clients,
            min_answers=limits.min_answers,
            deadline=limits.deadline,
            wait=limits.wait,
            before=_last_present(directory),
            keys=KeyRing(endpoint.nodes),
            notice=notice,
            idle=idle,
            method=experiment.method,
        )


def _last_present(directory: RunDirectory) -> Sequence[int]:
    """Return who was present in the last recorded round: a resumed run waits for them."""
    rows = directory.metrics()
    return list(rows[-1].present or ()) if rows else []
