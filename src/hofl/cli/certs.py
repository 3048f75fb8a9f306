"""``hofl certs``: the certificates and keys of a fleet."""

from pathlib import Path
from typing import Annotated

import typer

from hofl.errors import HoflError

EXAMPLE = """Examples:

`hofl certs fleet --host train.example.org --host 10.0.0.1 --device kitchen --device garage`

`hofl certs fleet --device attic` adds a device to that fleet.
"""


def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; may hold a fleet's.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, for a new fleet.")
    ] = None,
    device: Annotated[list[str] | None, typer.Option(help="Name of a device to let in.")] = None,
) -> None:
    """Make a certificate authority, a server certificate, and keys for devices."""
    try:
        from hofl.secure.certificates import make_certificates
    except ModuleNotFoundError:
        raise HoflError("certificates need a library: pip install 'hofl[flower]'.") from None

    for path in make_certificates(folder, host or [], device or []):
        typer.echo(path)
    for name in device or []:
        typer.echo(f"copy {folder / 'devices' / name} to {name}, and delete it here.")
