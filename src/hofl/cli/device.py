"""``hofl device``: lend this machine, its memory and its data to a run."""

import math
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from hofl.cli import interrupts
from hofl.cli.options import TRANSPORT, Backward, Disk, Seconds, Uplink
from hofl.core.errors import HoflError

EXAMPLES = {
    "device": (
        "hofl device --server 10.0.0.1:9443 --data mine.jsonl --tls kitchen",
        "hofl device --server 127.0.0.1:9092 --shard 0 --memory 4GiB",
        "hofl device --server 127.0.0.1:9092 --shard 1 --memory 1GiB --no-backward",
    )
}


def device(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[
        Path | None, typer.Option(help="Own training file, or a folder of them. It stays here.")
    ] = None,
    shard: Annotated[
        int,
        typer.Option(
            min=-1,
            help="Instead of own data: this part of the run's task (a rehearsal).",
            show_default=False,
        ),
    ] = -1,
    memory: Annotated[
        str, typer.Option(help="Memory for training, such as 4GiB; auto is what is free.")
    ] = "auto",
    backward: Backward = True,
    disk: Disk = None,
    read_speed: Annotated[
        str | None, typer.Option(help="Of that disk, such as 500MiB/s; measured if needed.")
    ] = None,
    gflops: Annotated[
        float | None, typer.Option(help="Speed of computing; measured if needed.")
    ] = None,
    seconds: Seconds = None,
    uplink: Uplink = None,
    boundary: Annotated[
        int,
        typer.Option(
            min=-1,
            help="Order boundary instead of the one found from the memory.",
            show_default=False,
        ),
    ] = -1,
    name: Annotated[
        str | None, typer.Option(help="Name; by default that of the key, or else of the machine.")
    ] = None,
    tls: Annotated[
        Path | None, typer.Option(help="This device's folder of hofl certs; its name is NAME.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Its private key, if it is not DIR/NAME.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model to use, such as a local folder, instead of the run's.")
    ] = "",
    transport: Annotated[
        str, typer.Option(help="How messages travel; the same as on the server.")
    ] = TRANSPORT,
    home: Annotated[Path | None, typer.Option(help="Folder for logs.")] = None,
    where: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 is all.")] = 0,
    min_noise: Annotated[
        float, typer.Option(min=0, help="Refuse plans with less noise (privacy.noise) than this.")
    ] = 0.0,
    max_epsilon: Annotated[
        float | None,
        typer.Option(min=0, help="Refuse plans beyond this epsilon, by the device's own count."),
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(min=0, help="Refuse plans after so many rounds, of all runs.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of --max-epsilon.")] = 1e-5,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="Niceness of the training, 0 to 19.")
    ] = 10,
) -> None:
    """Take part in a server's runs until stopped. Data never leave this machine."""
    from hofl.deploy.device import STOPS, Enrolment, WorkerSettings
    from hofl.deploy.keys import Identity

    limits = {
        "backward": None if backward else False,
        "disk": disk,
        "read_speed": read_speed,
        "gflops": gflops,
        "seconds": seconds,
        "uplink": uplink,
    }
    if not 0 <= min_noise < math.inf:
        raise HoflError(f"got --min-noise {min_noise:g}: give a number such as 1.")
    if max_epsilon is not None and not 0 <= max_epsilon < math.inf:
        raise HoflError(f"got --max-epsilon {max_epsilon:g}: give a number such as 8.")
    if not 0 < delta < 1:
        raise HoflError(f"got --delta {delta:g}: give a number between 0 and 1, such as 1e-5.")
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
        limits={name: value for name, value in limits.items() if value is not None},
        boundary=boundary,
        model=model,
        device=where,
        threads=threads,
        min_noise=min_noise,
        max_epsilon=max_epsilon,
        max_rounds=max_rounds,
        delta=delta,
    )
    enrolment = Enrolment(settings, server, folder.resolve(), identity, nice, transport)
    enrolment.check()
    typer.echo(f"{called}: taking part in the runs of {server}; logs in {folder}")
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the supervisor takes them from here
    interrupts.check()
    # What waits for months must be small: this process has loaded more than it needs.
    os.execv(sys.executable, enrolment.command())
