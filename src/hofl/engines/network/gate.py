"""The gateway in front of a server: nginx as a child process, with the configuration it needs."""

import os
import re
import signal
import time
from pathlib import Path

from hofl.engines.network.processes import Backoff, Child, answers, split_address
from hofl.errors import HoflError
from hofl.secure.gateway import Gateway, command, nginx

START_SECONDS = 20.0
_ENTRY = re.compile(r'\S+ \S+ "CN=(?P<name>[^",]+)" \d+ (?P<up>\d+) (?P<down>\d+) .*')
"""A line of the access log, as the gateway's log_format writes it."""


class Gate:
    """Keeps the gateway of a server running.

    Args:
        folder: for ``nginx.conf`` and logs.
        listen: HOST:PORT for the devices.
        superlink: port of the SuperLink on loopback.
        tls: folder of certificates.
    """

    def __init__(self, folder: Path, listen: str, superlink: int, tls: Path) -> None:
        nginx()
        host, self._port = split_address(listen)
        self._local = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(host, host)
        if answers(self._local, self._port):
            raise HoflError(f"{listen} is in use: choose another port with --address.")
        Gateway(listen=listen, superlink=superlink, tls=tls).write(folder)
        self._access = folder / "access.log"
        self._read = self._access.stat().st_size if self._access.exists() else 0
        self._backoff = Backoff(1.0, 30.0)
        self._nginx = Child(
            "gateway",
            lambda: command(folder),
            folder / "nginx.log",
            dict(os.environ),
            # Killed, it would leave its workers behind; asked to end, it ends them first.
            orphaned=signal.SIGTERM,
        )

    def keep(self) -> None:
        """Start it when it is not running."""
        if not self._nginx.alive() and self._backoff.ready():
            self._nginx.start()

    def open(self) -> None:
        """Start it, and wait until devices can connect."""
        self.keep()
        until = time.monotonic() + START_SECONDS
        while not answers(self._local, self._port):
            if not self._nginx.alive() or time.monotonic() > until:
                raise HoflError(f"the gateway does not start: {self._nginx.last_words()}")
            time.sleep(0.1)

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes of HTTP down and up since the last look, by the name in a device's certificate."""
        found: dict[str, tuple[int, int]] = {}
        if not self._access.exists():
            return found
        with self._access.open("rb") as file:
            file.seek(self._read)
            # A line that is being written is left for the next look.
            for line in iter(file.readline, b""):
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if entry := _ENTRY.fullmatch(line.decode(errors="replace").strip()):
                    down, up = found.get(entry["name"], (0, 0))
                    found[entry["name"]] = (down + int(entry["down"]), up + int(entry["up"]))
        return found

    def close(self) -> None:
        """Stop it."""
        self._nginx.stop()
