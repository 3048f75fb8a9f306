"""``hofl server``, ``hofl fleet``, ``hofl certs``: runs over a network of devices."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli import interrupts
from hofl.cli.display import RunDisplay, say, show_result
from hofl.cli.options import (
    TRANSPORT,
    Changes,
    FromRound,
    OptionalSource,
    Source,
    more_rounds,
)
from hofl.core.errors import HoflError
from hofl.experiment.runs import RunDirectory

EXAMPLES = {
    "server": (
        "hofl server my.toml --address 127.0.0.1:9092 --out runs/a",
        "hofl server my.toml --address 0.0.0.0:9443 --tls f --nodes f/keys --out runs/b",
        "hofl server my.toml --address 127.0.0.1:9092 --out runs/a --resume",
        "hofl server rounds=60 --address 127.0.0.1:9092 --out runs/a --resume",
    ),
    "fleet": (
        "hofl fleet demo rounds=2 --devices 3 --out runs/rehearsal",
        "hofl fleet my.toml --devices 3 --memory 2GiB,4GiB,8GiB --out runs/b",
    ),
    "certs": (
        "hofl certs fleet --host train.example.org --host 10.0.0.1 --device kitchen",
        "hofl certs fleet --device attic",
        "hofl certs fleet --renew",
        "hofl certs fleet --revoke attic",
    ),
}
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out, if there is one.")]


def server(
    config: OptionalSource = None,
    changes: Changes = None,
    address: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:9092",
    tls: Annotated[
        Path | None,
        typer.Option(help="Folder of hofl certs; needed outside this machine. nginx is started."),
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="Folder of the devices' public keys (NAME.pub).")
    ] = None,
    transport: Annotated[
        str, typer.Option(help="How messages travel: flower, or MODULE:OBJECT of another.")
    ] = TRANSPORT,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Resume = False,
    from_round: FromRound = None,
) -> None:
    """Train with devices that connect to this server; fleet.clients of them start the first round.

    Later rounds take whichever devices are there. With rounds=N in place of a configuration, a
    resumed run is extended.
    """
    rounds = None
    if resume and config is not None and config.startswith("rounds="):
        rounds, config = more_rounds([config, *(changes or [])]), None
    if out is None or (config is None and not resume):
        raise HoflError("give a configuration and --out DIR; --resume resumes the run in DIR.")
    if from_round is not None and not resume:
        raise HoflError("--from-round is for --resume.")
    console = Console()
    chosen = None if config is None else hofl.read_config(config, changes)
    again = resume and _resumes(console, out, config)
    options = "" if tls is None else f"--tls {tls} --nodes {nodes} "
    options += "" if transport == TRANSPORT else f"--transport {transport} "
    hint = f"hofl server --address {address} {options}--resume"
    # The summary of a run that is over needs no library of models.
    over = again and from_round is None and rounds is None
    summary = RunDirectory.open(out).finished() if over else None
    if summary is None:
        with (
            interrupts.stoppable(console, out, hint, option="--out"),
            RunDisplay(console, out.name) as display,
        ):
            from hofl.deploy.server import server_launcher
            from hofl.deploy.transport import Endpoint

            interrupts.load("hofl.experiment.rounds")
            endpoint = Endpoint(address=address, tls=tls, nodes=nodes, transport=transport)
            launcher = server_launcher(endpoint)
            if again or chosen is None:
                summary = hofl.resume(
                    out, display, launcher, from_round, rounds, progress=False
                ).record
            else:
                summary = hofl.run(chosen, out, display, launcher, progress=False).record
    show_result(console, out, summary)


def fleet(
    config: Source,
    changes: Changes = None,
    devices: Annotated[int, typer.Option(min=1, help="How many devices.")] = 3,
    memory: Annotated[
        str,
        typer.Option(
            help="Their budgets, such as 2GiB,4GiB; else those of CONFIG, or its boundaries."
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/fleet"),
    resume: Resume = False,
) -> None:
    """Start a server and its devices here, on loopback, and train: a dress rehearsal."""
    console, settings = Console(), hofl.read_config(config, changes)
    budgets = [word.strip() for word in memory.split(",") if word.strip()]
    sizes = f"--memory {','.join(budgets)} " if budgets else ""
    words = shlex.join([config, *(changes or ())])
    hint = f"hofl fleet {words} --devices {devices} {sizes}--resume"
    again = resume and _resumes(console, out, config)
    summary = RunDirectory.open(out).finished() if again else None
    if summary is None:
        with (
            interrupts.stoppable(console, out, hint, option="--out"),
            RunDisplay(console, out.name) as display,
        ):
            from hofl.deploy.rehearsal import rehearsal_launcher, sized

            interrupts.load("hofl.experiment.rounds")
            launcher = rehearsal_launcher(budgets)
            if again:
                summary = hofl.resume(out, display, launcher, progress=False).record
            else:
                summary = hofl.run(
                    sized(settings, devices), out, display, launcher, progress=False
                ).record
    show_result(console, out, summary)


def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; may hold a fleet's.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, for a new fleet.")
    ] = None,
    device: Annotated[list[str] | None, typer.Option(help="Name of a device to let in.")] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew all certificates, or those of --device alone.")
    ] = False,
    revoke: Annotated[
        list[str] | None, typer.Option(help="Name of a device to shut out for good.")
    ] = None,
) -> None:
    """Make a certificate authority, a server certificate, and keys for devices.

    Called again, it adds devices to the fleet in the folder. Renewed certificates keep their keys:
    the old ones work until they end.
    """
    from hofl.deploy import certificates, renewal
    from hofl.experiment.launch import readable_errors

    hosts, devices = host or [], device or []
    if revoke and (renew or hosts or devices):
        raise HoflError("--revoke stands alone: renew and add devices in another call.")
    with readable_errors(folder):
        if revoke:
            written = renewal.revoke(folder, revoke)
            notes = ["a server that uses this folder refuses them from its next look on."]
        elif renew:
            written = renewal.renew(folder, hosts, devices)
            homes = {path.parent for path in written if path.parent.parent.name == "devices"}
            notes = [
                f"copy {home}/*.crt into the folder of {home.name}, and restart it."
                for home in sorted(homes)
            ]
        else:
            written = certificates.make_certificates(folder, hosts, devices)
            notes = [
                f"copy {folder / 'devices' / name} to {name}, and delete it here."
                for name in devices
            ]
    for line in (*written, *notes):
        typer.echo(line)


def _resumes(console: Console, path: Path, config: str | None) -> bool:
    """Return whether there is a run to resume, and say that its own configuration holds then."""
    recorded = path / "config.toml"
    if recorded.is_file() and config is not None:
        say(console, f"resuming with {recorded}; {config} is for a new run and has no effect.")
    return recorded.is_file()
