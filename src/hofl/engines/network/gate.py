"""The gateway in front of a server: nginx as a child process, with the configuration it needs."""

import os
import re
import signal
import time
from pathlib import Path

from hofl.engines.network.processes import (
    Backoff,
    Child,
    answers,
    check_free,
    reached_at,
    split_address,
)
from hofl.errors import HoflError
from hofl.secure.gateway import Gateway, command, nginx

START_SECONDS = 20.0
_ENTRY = re.compile(r'\S+ \S+ "CN=(?P<name>[^",]+)" \d+ (?P<up>\d+) (?P<down>\d+) .*')
"""A line of the access log, as the gateway's log_format writes it."""
LONGEST_LOG = 16 * 2**20
"""Bytes after which the access log is begun anew."""
LOG_SECONDS = 300.0
"""Before the log is begun anew once more: requests under way still write to the one put aside."""


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
        self._local = reached_at(host)
        check_free(host, self._port)
        Gateway(listen=listen, superlink=superlink, tls=tls).write(folder)
        self._access, self._old = folder / "access.log", folder / "access.log.1"
        self._read = {path: _size(path) for path in (self._old, self._access)}
        self._counted: dict[str, tuple[int, int]] = {}
        self._begun = -LOG_SECONDS
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
        """Start it when it is not running, and keep its log short."""
        if not self._nginx.alive() and self._backoff.ready():
            self._nginx.start()
        if _size(self._access) > LONGEST_LOG and time.monotonic() > self._begun + LOG_SECONDS:
            self._begin_log()

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
        self._count()
        found, self._counted = self._counted, {}
        return found

    def _count(self) -> None:
        """Take in what was written since, at last to the log that was put aside."""
        for path in (self._old, self._access):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[path])
                # A line that is being written is left for the next look.
                for line in iter(file.readline, b""):
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] += len(line)
                    if entry := _ENTRY.fullmatch(line.decode(errors="replace").strip()):
                        down, up = self._counted.get(entry["name"], (0, 0))
                        more = int(entry["down"]), int(entry["up"])
                        self._counted[entry["name"]] = (down + more[0], up + more[1])

    def _begin_log(self) -> None:
        """Put the log aside, in place of the one before; what is not yet counted is counted there.

        nginx opens its files anew when it loads its configuration. It could be asked for the files
        alone, but then its workers open them, who may not look into the folder.
        """
        self._count()
        self._access.replace(self._old)
        self._read = {self._old: self._read[self._access], self._access: 0}
        self._begun = time.monotonic()
        self._nginx.tell(signal.SIGHUP)

    def close(self) -> None:
        """Stop it."""
        self._nginx.stop()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
