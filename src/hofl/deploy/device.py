"""A device's side of a run on a network: its settings and its supervisor.

The supervisor keeps the resident worker and the transport's node running. It loads no model
library: the worker does. ``python -m hofl.deploy.device ENROLMENT`` runs it.
"""

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Self

from hofl.core.errors import HoflError
from hofl.core.sizes import AUTO, parse_bytes, parse_disk, parse_rate, parse_uplink
from hofl.deploy.keys import Identity
from hofl.deploy.link import private_folder
from hofl.deploy.processes import (
    Backoff,
    Child,
    is_loopback,
    split_address,
    stop_all,
)
from hofl.deploy.renewal import ExpiryWatch
from hofl.deploy.transport import DEFAULT, Node, find_transport

STOPS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("hofl.device")


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of a device's resident worker.

    Args:
        name: the device's name for itself.
        socket: where the worker listens.
        run_config: file that keeps the run's configuration, for a worker that is restarted.
        data: the device's own training files, or "".
        shard: instead of them, a part of the run's task; -1 for none.
        memory: budget such as ``4GiB``, or ``auto`` for what is free.
        boundary: order boundary, or -1 to find it from the memory.
        limits: what else the device can do and will spend, as in ``fleet.devices``.
        model: model to use in place of the one that the run names, or "".
        device: where to compute.
        threads: CPU threads, 0 for all.
        key: private key that signs answers, or "" where nobody has keys.
        min_noise: plans with a smaller noise multiplier (``privacy.noise``) are refused.
        ledger: file that counts what the device has released, or "" for none.
        max_epsilon: most epsilon of all participations, at ``delta``; None for no limit.
        max_rounds: most participations; None for no limit.
        delta: of ``max_epsilon``.
    """

    name: str
    socket: str = ""
    run_config: str = ""
    data: str = ""
    shard: int = -1
    memory: str = AUTO
    boundary: int = -1
    limits: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    device: str = "auto"
    threads: int = 0
    key: str = ""
    min_noise: float = 0.0
    ledger: str = ""
    max_epsilon: float | None = None
    max_rounds: int | None = None
    delta: float = 1e-5

    def to_json(self) -> str:
        """Serialise for the worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the worker's command line."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Enrolment:
    """Everything that a device's supervisor needs to know.

    Args:
        settings: the worker's; socket, files and key are filled in by the supervisor.
        server: HOST:PORT.
        home: folder for logs.
        identity: None on the server's own machine.
        niceness: of the worker.
        transport: how messages travel; the server's choice.
    """

    settings: WorkerSettings
    server: str
    home: Path
    identity: Identity | None = None
    niceness: int = 10
    transport: str = DEFAULT

    def check(self) -> None:
        """Refuse at once what could never work."""
        find_transport(self.transport).check_device()
        host, _ = split_address(self.server)
        if self.identity is not None:
            self.identity.check()
        elif not is_loopback(host):
            raise HoflError(f"{host} is another machine: give --tls DIR (hofl certs makes it).")
        data, shard = self.settings.data, self.settings.shard
        if bool(data) == (shard >= 0):
            raise HoflError("a device needs --data FILE_OR_DIR, or --shard NUMBER for a rehearsal.")
        if data and not Path(data).exists():
            raise HoflError(f"no file or folder {data}: --data is what this device trains on.")
        if self.settings.max_epsilon is not None and find_spec("dp_accounting") is None:
            raise HoflError("--max-epsilon needs an accountant: pip install 'hofl[privacy]'.")
        if self.settings.memory != AUTO:
            parse_bytes(self.settings.memory)
        self._check_limits(self.settings.limits)
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HoflError(f"cannot keep logs in --home {self.home}: {error.strerror}.") from None

    def _check_limits(self, limits: Mapping[str, Any]) -> None:
        """Refuse amounts and speeds that cannot be."""
        readers = {"disk": parse_disk, "read_speed": parse_rate, "uplink": parse_uplink}
        for name, read in readers.items():
            if name in limits:
                read(limits[name])
        for name in ("gflops", "seconds"):
            if not 0 < limits.get(name, 1.0) < math.inf:
                raise HoflError(f"--{name} must be more than 0, got {limits[name]:g}.")

    def command(self) -> list[str]:
        """Return the words that start the supervisor."""
        text = json.dumps(asdict(self), default=str)  # paths as text
        return [sys.executable, "-m", "hofl.deploy.device", text]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the supervisor's command line."""
        fields = json.loads(text)
        identity = fields.pop("identity")
        if identity is not None:
            key = identity["key"]
            identity = Identity(Path(identity["folder"]), None if key is None else Path(key))
        settings, home = WorkerSettings(**fields.pop("settings")), Path(fields.pop("home"))
        return cls(settings=settings, home=home, identity=identity, **fields)

    def take_part(self, stop: "_StopFlag") -> None:
        """Run the worker and the node until SIGTERM or Ctrl-C; leave no process behind."""
        transport = find_transport(self.transport)
        with (
            transport.node(self.server, self.identity, self.home) as node,
            private_folder() as private,
        ):
            children = self._children(node, private / "worker")
            watch = self._watch()
            try:
                _keep_running(children, stop, watch)
            finally:
                log.info("stopping")
                stop_all([child for child, _ in children])

    def _watch(self) -> ExpiryWatch:
        identity = self.identity
        files = [] if identity is None else [identity.ca, identity.pair[0]]
        advice = f"ask for a new one (hofl certs FLEET --renew --device {self.settings.name})"
        return ExpiryWatch(lambda: files, advice, log.warning)

    def _children(self, node: Node, socket: Path) -> list[tuple[Child, Backoff]]:
        key = "" if self.identity is None else str(self.identity.private_key)
        settings = replace(
            self.settings,
            socket=str(socket),
            run_config=str(self.home / "run.toml"),
            key=key,
            ledger=str(self.home / "ledger.json"),
        )
        worker = Child(
            "worker",
            lambda: [sys.executable, "-m", "hofl.deploy.worker", settings.to_json()],
            self.home / "worker.log",
            {**os.environ, "PYTHONUNBUFFERED": "1"},
            self.niceness,
        )
        link = Child("node", lambda: node.command(socket), self.home / "node.log", node.environment)
        return [(link, Backoff(5.0, node.longest_pause)), (worker, Backoff(1.0, 30.0))]


class _StopFlag:
    """Notes SIGTERM and Ctrl-C. An exception could arrive while a child is being started."""

    def __init__(self) -> None:
        self.requested = False
        for number in STOPS:
            signal.signal(number, self._note)
        # ``hofl device`` blocks them before it starts this program: none is lost, none is early.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True


def _keep_running(
    children: list[tuple[Child, Backoff]], stop: _StopFlag, watch: ExpiryWatch
) -> None:
    started: set[str] = set()
    while not stop.requested:
        watch.look()
        for child, backoff in children:
            if not child.alive() and backoff.ready():
                if child.name in started:
                    log.warning("%s ended (%s): restarting", child.name, child.last_words())
                started.add(child.name)
                child.start()
        time.sleep(0.5)


def main() -> None:
    """Supervise the device that the command line describes."""
    stop = _StopFlag()
    enrolment = Enrolment.from_json(sys.argv[1])
    enrolment.home.mkdir(parents=True, exist_ok=True)
    logging.raiseExceptions = False  # whoever reads the output may be gone long before
    file = logging.FileHandler(enrolment.home / "device.log")
    handlers: list[logging.Handler] = [file, logging.StreamHandler()]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=handlers)
    try:
        enrolment.take_part(stop)
    except HoflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
