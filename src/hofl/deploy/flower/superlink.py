"""Keeps Flower's SuperLink and our run on it alive, and the connection to that run's app."""

import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.deploy.flower import commands
from hofl.deploy.flower.admission import Admission
from hofl.deploy.gateway import GatewayProcess
from hofl.deploy.keys import ServerFiles
from hofl.deploy.link import Header, LinkLost, listen, receive, send
from hofl.deploy.processes import Child, answers, check_free
from hofl.deploy.transport import Notice

START_SECONDS = 120.0
RESTARTS = 6
"""Restarts in a row that may fail before the run is given up."""
CALL_SECONDS = 120.0
"""A call that takes longer is lost; pushing the largest plan takes a few seconds."""


class Bridge:
    """The loop's end of the connection to Flower's server app, which comes and goes with its run.

    Args:
        path: of the socket on which the app is awaited.
        healthy: returns whether an answer can still come; called while waiting for one.
    """

    def __init__(self, path: Path, healthy: Callable[[], bool] = lambda: True) -> None:
        self.path, self._healthy = path, healthy
        self._server = listen(path)
        self._link: socket.socket | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether the app is connected, at the latest after so many seconds."""
        self._server.settimeout(0.2)
        until = time.monotonic() + seconds
        while self._link is None and time.monotonic() < until:
            try:
                self._link, _ = self._server.accept()
            except TimeoutError:
                continue
            self._link.settimeout(CALL_SECONDS)
        return self._link is not None

    def call(self, header: Header, payload: bytes = b"") -> tuple[Header, bytes]:
        """Ask the app.

        Raises:
            LinkLost: it is gone; ``wait`` accepts the next one.
        """
        if self._link is None:
            raise LinkLost("Flower's server app is not connected")
        try:
            send(self._link, header, payload)
            self._await(self._link)
            return receive(self._link)
        except LinkLost:
            self._hang_up()
            raise

    def _await(self, link: socket.socket) -> None:
        until = time.monotonic() + CALL_SECONDS
        while not select.select([link], [], [], 1.0)[0]:
            if time.monotonic() > until or not self._healthy():
                raise LinkLost("Flower does not answer")

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End the app and remove the socket."""
        self._hang_up()
        self._server.close()
        self.path.unlink(missing_ok=True)


class SuperLink:
    """The SuperLink as a child process, the submission of runs, and the gateway in front of it.

    Args:
        folder: for Flower's files and logs.
        host: where the SuperLink listens: an address of loopback.
        port: its port.
        tls: certificates, or None on loopback.
        keys: folder of the public keys of devices that may join, with TLS.
        gateway: the gateway, with TLS.
        notice: called with what goes wrong and is retried.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        tls: ServerFiles | None = None,
        keys: Path | None = None,
        gateway: GatewayProcess | None = None,
        notice: Notice = lambda text: None,
    ) -> None:
        self._host, self._port, self._gateway = host, port, gateway
        self._home, self._notice = folder / "flower", notice
        environment = commands.environment(self._home)
        database = self._home / "superlink.db"
        self._link = Child(
            "SuperLink",
            lambda: commands.superlink(host, port, database, tls),
            folder / "superlink.log",
            environment,
        )
        self._admission = None if keys is None else Admission(self._home, keys, notice)
        check_free(host, port)
        commands.write_connection(self._home, f"{host}:{port}", tls)

    def ensure(self, bridge: Bridge) -> None:
        """Run a SuperLink with a run whose app is connected to the bridge."""
        for failures in range(RESTARTS):
            try:
                if not self._link.alive():
                    self._start()
                if self._gateway is not None:
                    self._gateway.open()
                self.admit()
                commands.submit(self._home, bridge.path)
                if bridge.wait(START_SECONDS):
                    return
                raise HoflError("Flower's server app did not start.")
            except HoflError as error:
                problem = error
                self._notice(f"restarting Flower: {error}")
                self._link.stop()
            time.sleep(min(2.0**failures, 30.0))
        raise HoflError(f"Flower cannot be kept running: {problem} {self._link.last_words()}")

    def keep_running(self) -> bool:
        """Restart the gateway when it is gone; return whether the SuperLink runs.

        Looking at the SuperLink also notes its processes, to end them when it is dead.
        """
        if self._gateway is not None:
            self._gateway.keep_running()
        return self._link.alive()

    def admit(self) -> None:
        """Register keys that were added, unregister those that are gone."""
        if self._admission is not None:
            self._admission.update()

    def close(self) -> None:
        """Stop the gateway, the SuperLink and what it started."""
        if self._gateway is not None:
            self._gateway.close()
        self._link.stop()

    def _start(self) -> None:
        check_free(self._host, self._port)
        self._link.start()
        until = time.monotonic() + START_SECONDS
        while not answers(self._host, self._port):
            if not self._link.alive() or time.monotonic() > until:
                raise HoflError(f"the SuperLink does not start: {self._link.last_words()}")
            time.sleep(0.2)
