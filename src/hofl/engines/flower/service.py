"""Keeps Flower's SuperLink and our run on it alive, for as long as the loop of rounds wants."""

import time
from collections.abc import Callable
from pathlib import Path

from hofl.engines.flower import commands
from hofl.engines.network.bridge import Bridge
from hofl.engines.network.gate import Gate
from hofl.engines.network.processes import Child, answers, check_free
from hofl.errors import HoflError

START_SECONDS = 120.0
RESTARTS = 6
"""Restarts in a row that may fail before the loop is told."""
REGISTER_AGAIN = 60.0
"""Seconds until a key that could not be registered is tried again."""


class FlowerServices:
    """The SuperLink as a child process, and the submission of runs.

    Args:
        folder: for Flower's files and logs.
        host: where the SuperLink listens: an address of loopback.
        port: its port.
        tls: certificates, or None on loopback.
        keys: public keys of the devices that may join, with TLS.
        gate: the gateway in front of it, with TLS.
        notice: told of what goes wrong on the way.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        tls: commands.Certificates | None = None,
        keys: Path | None = None,
        gate: Gate | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._host, self._port, self._tls, self._keys, self._gate = host, port, tls, keys, gate
        self._home, self._notice = folder / "flower", notice
        environment = commands.environment(self._home)
        database = self._home / "superlink.db"
        self._link = Child(
            "SuperLink",
            lambda: commands.superlink(host, port, database, tls),
            folder / "superlink.log",
            environment,
        )
        self._registered: set[tuple[Path, bytes]] = set()
        self._later: dict[Path, float] = {}
        check_free(host, port)
        commands.write_connection(self._home, f"{host}:{port}", tls)

    def ensure(self, bridge: Bridge) -> None:
        """A running SuperLink with a run whose app is connected to the bridge."""
        for failures in range(RESTARTS):
            try:
                if not self._link.alive():
                    self._start()
                if self._gate is not None:
                    self._gate.open()
                self.admit()
                commands.submit(self._home, bridge.path)
                if bridge.wait(START_SECONDS):
                    return
                raise HoflError("Flower's server app did not start.")
            except HoflError as error:
                problem = error
                self._notice(f"Flower is started again: {error}")
                self._link.stop()
            time.sleep(min(2.0**failures, 30.0))
        raise HoflError(f"Flower cannot be kept running: {problem} {self._link.last_words()}")

    def healthy(self) -> bool:
        """Whether the SuperLink runs; looking also lets its processes notice when it does not.

        The gateway holds nothing of a round: it is started again without anybody noticing.
        """
        if self._gate is not None:
            self._gate.keep()
        return self._link.alive()

    def admit(self) -> None:
        """Register keys that were added or replaced; one that is refused is tried again later."""
        if self._keys is None:
            return
        for key in commands.public_keys(self._keys):
            try:
                one = key, key.read_bytes()
                if one in self._registered or self._later.get(key, 0.0) > time.monotonic():
                    continue
                commands.register(self._home, key)
                self._registered.add(one)
            except (HoflError, OSError) as error:
                self._later[key] = time.monotonic() + REGISTER_AGAIN
                self._notice(f"{key.name} cannot be registered: {error}")

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes of HTTP down and up since the last look, per device; known to the gateway alone."""
        return {} if self._gate is None else self._gate.traffic()

    def close(self) -> None:
        """Stop the gateway, the SuperLink and what it started."""
        if self._gate is not None:
            self._gate.close()
        self._link.stop()

    def _start(self) -> None:
        check_free(self._host, self._port)
        self._link.start()
        until = time.monotonic() + START_SECONDS
        while not answers(self._host, self._port):
            if not self._link.alive() or time.monotonic() > until:
                raise HoflError(f"the SuperLink does not start: {self._link.last_words()}")
            time.sleep(0.2)
