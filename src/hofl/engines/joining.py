"""A device's side of a run on a network. Loads no model library: its worker does."""

from pathlib import Path

from hofl.engines.flower import commands
from hofl.engines.network.device import run_device
from hofl.engines.network.processes import free_port, is_loopback, split_address
from hofl.engines.network.settings import WorkerSettings
from hofl.errors import HoflError


def take_part(
    settings: WorkerSettings,
    server: str,
    home: Path,
    *,
    tls: Path | None = None,
    key: Path | None = None,
    niceness: int = 10,
) -> None:
    """Be a device until told to stop."""
    commands.check_installed()
    host, _ = split_address(server)
    if tls is None and not is_loopback(host):
        raise HoflError(f"{host} is another machine: give --tls DIR and --key FILE.")
    if (tls is None) != (key is None):
        raise HoflError("--tls DIR and --key FILE belong together.")
    if key is not None and not key.is_file():
        raise HoflError(f"no file {key}: make device keys with hofl certs.")
    certificates = None if tls is None else commands.Certificates(tls)
    run_device(
        settings,
        lambda socket: commands.supernode(server, free_port(), socket, certificates, key),
        commands.environment(home / "flower"),
        home,
        niceness,
    )
