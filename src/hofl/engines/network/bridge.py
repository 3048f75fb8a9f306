"""The loop's end of the connection to Flower's server app, which comes and goes with its run."""

import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from hofl.engines.network.link import Header, LinkLost, listen, receive, send

CALL_SECONDS = 120.0
"""A call that takes longer is lost; pushing the largest plan takes a few seconds."""


class Bridge:
    """Waits for the server app on a socket, and asks it.

    Args:
        path: of the socket.
        healthy: whether an answer can still come; asked while waiting for one.
    """

    def __init__(self, path: Path, healthy: Callable[[], bool] = lambda: True) -> None:
        self.path, self._healthy = path, healthy
        self._server = listen(path)
        self._link: socket.socket | None = None

    def wait(self, seconds: float) -> bool:
        """Whether the app is connected, at the latest after so many seconds."""
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
            LinkLost: it is gone; ``wait`` takes the next one.
        """
        if self._link is None:
            raise LinkLost("Flower's server app is not connected")
        try:
            send(self._link, header, payload)
            self._await(self._link)
            return receive(self._link)
        except LinkLost:
            self.hang_up()
            raise

    def _await(self, link: socket.socket) -> None:
        until = time.monotonic() + CALL_SECONDS
        while not select.select([link], [], [], 1.0)[0]:
            if time.monotonic() > until or not self._healthy():
                raise LinkLost("Flower does not answer")

    def hang_up(self) -> None:
        """End the app."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End the app and the socket."""
        self.hang_up()
        self._server.close()
        self.path.unlink(missing_ok=True)
