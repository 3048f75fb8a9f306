"""``hofl gateway``: the configuration of the reverse proxy in front of a server."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hofl.secure.gateway import CHUNK, Gateway, command

EXAMPLE = """Example:

`hofl gateway gate --listen 0.0.0.0:9443 --superlink 9092 --tls fleet`
"""


def gateway(
    folder: Annotated[Path, typer.Argument(help="Folder for nginx.conf and its logs.")],
    tls: Annotated[Path, typer.Option(help="Folder of hofl certs.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT for the devices.")] = "0.0.0.0:9443",
    superlink: Annotated[int, typer.Option(help="Port of the SuperLink on loopback.")] = 9092,
    body: Annotated[int, typer.Option(help="Most bytes of one request.")] = 2 * CHUNK,
) -> None:
    """Write an nginx configuration that lets devices through to the fleet's paths only."""
    Gateway(listen=listen, superlink=superlink, tls=tls, body=body).write(folder)
    typer.echo(shlex.join(command(folder)))
