"""A device's side of a run on a network. Loads no model library: its worker does."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hofl.engines.flower import commands
from hofl.engines.network.device import run_device
from hofl.engines.network.processes import free_port, is_loopback, split_address
from hofl.engines.network.settings import WorkerSettings
from hofl.errors import HoflError
from hofl.planning.sizes import AUTO, parse_bytes
from hofl.secure.relay import DeviceFiles, Relay
from hofl.secure.signatures import signer


@dataclass(frozen=True)
class Identity:
    """How a device proves who it is.

    Args:
        tls: the device's folder of ``hofl certs``.
        key: its private key; ``tls/NAME`` where NAME is that of the folder, if not given.
    """

    tls: Path
    key: Path | None = None

    @property
    def own_key(self) -> Path:
        """Its private key, for Flower."""
        return self.key or self.tls / self.tls.resolve().name

    @property
    def name(self) -> str:
        """The name that the key is registered under."""
        return self.own_key.name

    def check(self) -> None:
        """Refuse to start without a key that can sign."""
        names = ("ca.crt", f"{self.name}.crt", f"{self.name}.key")
        for path in (self.own_key, *(self.tls / name for name in names)):
            if not path.is_file():
                raise HoflError(f"no file {path}: make device keys with hofl certs.")
        signer(self.own_key)


@dataclass(frozen=True)
class Enrolment:
    """Everything that a device's supervisor needs to know.

    Args:
        settings: the worker's.
        server: HOST:PORT.
        home: folder for logs.
        identity: None on the server's own machine.
        niceness: of the worker.
    """

    settings: WorkerSettings
    server: str
    home: Path
    identity: Identity | None = None
    niceness: int = 10

    def check(self) -> None:
        """Refuse at once what could never work."""
        commands.check_installed()
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
        if self.settings.memory != AUTO:
            parse_bytes(self.settings.memory)
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HoflError(f"cannot keep logs in --home {self.home}: {error.strerror}.") from None

    def command(self) -> list[str]:
        """The words that start its supervisor."""
        tls, key = (self.identity.tls, self.identity.key) if self.identity else (None, None)
        fields = {
            "settings": self.settings.to_json(),
            "server": self.server,
            "home": str(self.home),
            "tls": tls and str(tls),
            "key": key and str(key),
            "niceness": self.niceness,
        }
        return [sys.executable, "-m", "hofl.engines.joining", json.dumps(fields)]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From the words of the command."""
        said = json.loads(text)
        tls, key = said["tls"] and Path(said["tls"]), said["key"] and Path(said["key"])
        return cls(
            WorkerSettings.from_json(said["settings"]),
            said["server"],
            Path(said["home"]),
            Identity(tls, key) if tls else None,
            said["niceness"],
        )

    def take_part(self) -> None:
        """Be a device until told to stop."""
        key = None if self.identity is None else self.identity.own_key
        settings = replace(self.settings, key="" if key is None else str(key))
        with _way_in(self.server, self.identity) as (address, certificates):
            run_device(
                settings,
                lambda socket: commands.supernode(address, free_port(), socket, certificates, key),
                commands.environment(self.home / "flower"),
                self.home,
                self.niceness,
            )


@contextmanager
def _way_in(
    server: str, identity: Identity | None
) -> Iterator[tuple[str, commands.Certificates | None]]:
    """Where the node connects to; with a certificate, to the relay that shows it."""
    if identity is None:
        yield server, None
        return
    with Relay(server, DeviceFiles(identity.tls, identity.name)) as relay:
        yield relay.address, commands.Certificates(identity.tls)


def main() -> None:
    """``python -m hofl.engines.joining ENROLMENT``: the supervisor, which loads little."""
    enrolment = Enrolment.from_json(sys.argv[1])
    enrolment.home.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        filename=enrolment.home / "device.log",
    )
    try:
        enrolment.take_part()
    except HoflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
