"""A device's side of a run on a network. Loads no model library: its worker does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hofl.engines.flower import commands
from hofl.engines.network.device import run_device
from hofl.engines.network.processes import free_port, is_loopback, split_address
from hofl.engines.network.settings import WorkerSettings
from hofl.errors import HoflError
from hofl.secure.relay import DeviceFiles, Relay


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
        """Refuse to start without a key."""
        if not self.own_key.is_file():
            raise HoflError(f"no file {self.own_key}: make device keys with hofl certs.")


def take_part(
    settings: WorkerSettings,
    server: str,
    home: Path,
    *,
    identity: Identity | None = None,
    niceness: int = 10,
) -> None:
    """Be a device until told to stop."""
    commands.check_installed()
    host, _ = split_address(server)
    if identity is None and not is_loopback(host):
        raise HoflError(f"{host} is another machine: give --tls DIR (hofl certs makes it).")
    key = None
    if identity is not None:
        identity.check()
        key = identity.own_key
    with _way_in(server, identity) as (address, certificates):
        run_device(
            settings,
            lambda socket: commands.supernode(address, free_port(), socket, certificates, key),
            commands.environment(home / "flower"),
            home,
            niceness,
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
