"""``hofl device``: lend this machine, its memory and its data to a run."""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from hofl.errors import HoflError

EXAMPLE = """Examples:

`hofl device --server 10.0.0.1:9443 --data mine.jsonl --memory 4GiB --tls kitchen`

`hofl device --server 127.0.0.1:9092 --shard 0 --memory auto`
"""


def device(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[
        Path | None, typer.Option(help="Own training file, or a folder of them. It stays here.")
    ] = None,
    shard: Annotated[
        int,
        typer.Option(
            min=-1, help="In place of own data: this part of the run's task (a rehearsal)."
        ),
    ] = -1,
    memory: Annotated[
        str, typer.Option(help="Memory for training, such as 4GiB; auto is what is free.")
    ] = "auto",
    boundary: Annotated[
        int, typer.Option(min=-1, help="Order boundary in place of the one found from the memory.")
    ] = -1,
    name: Annotated[
        str | None, typer.Option(help="Name; that of the key, or else of the machine.")
    ] = None,
    tls: Annotated[
        Path | None, typer.Option(help="This device's folder of hofl certs; its name is NAME.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Its private key, if it is not DIR/NAME.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model to use, such as a local folder, in place of the run's name.")
    ] = "",
    home: Annotated[Path | None, typer.Option(help="Folder for logs.")] = None,
    where: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 is all.")] = 0,
    min_noise: Annotated[
        float, typer.Option(min=0, help="Refuse plans with less noise (privacy.noise) than this.")
    ] = 0.0,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="Niceness of the training, 0 to 19.")
    ] = 10,
) -> None:
    """Take part in a server's runs until stopped. Data never leave this machine."""
    from hofl.engines.joining import Enrolment, Identity
    from hofl.engines.network.settings import WorkerSettings

    if tls is None and key is not None:
        raise HoflError("--key needs --tls DIR: the folder of hofl certs with its certificate.")
    identity = None if tls is None else Identity(tls.resolve(), key and key.resolve())
    called = name or (socket.gethostname() if identity is None else identity.name)
    folder = home or Path.home() / ".local" / "state" / "hofl" / called
    settings = WorkerSettings(
        name=called,
        data="" if data is None else str(data.resolve()),
        shard=shard,
        memory=memory,
        boundary=boundary,
        model=model,
        device=where,
        threads=threads,
        min_noise=min_noise,
    )
    enrolment = Enrolment(settings, server, folder.resolve(), identity, nice)
    enrolment.check()
    typer.echo(f"{called}: taking part in the runs of {server}; logs in {folder}")
    sys.stdout.flush()
    # What waits for months must be small: this process has loaded more than it needs.
    os.execv(sys.executable, enrolment.command())
