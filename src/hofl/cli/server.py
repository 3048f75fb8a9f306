"""``hofl server``: run an experiment over a network of devices."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import hofl
from hofl.cli.progress import RunDisplay
from hofl.cli.run import goes_on, shown_result, stoppable
from hofl.errors import HoflError

EXAMPLE = """Examples:

`hofl server my.toml --address 127.0.0.1:9092 --out runs/a`

`hofl server my.toml --address 0.0.0.0:9443 --tls fleet --nodes fleet/keys --out runs/a`

`hofl server my.toml --address 127.0.0.1:9092 --out runs/a --resume`
"""


def server(
    config: Annotated[
        str | None, typer.Argument(help="TOML file, or the name of a recipe such as demo.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to it: key=value, such as method.lr=1e-3.")
    ] = None,
    address: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:9092",
    tls: Annotated[
        Path | None,
        typer.Option(help="Folder of hofl certs; needed outside this machine. nginx is started."),
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option(help="Folder of the devices' public keys (NAME.pub).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")
    ] = False,
) -> None:
    """Train with devices that connect to this server; fleet.clients of them start the first round.

    Later rounds go on with whoever is there.
    """
    from hofl.engines.serving import Endpoint, serve, serve_again

    if out is None or (config is None and not resume):
        raise HoflError("give a configuration and --out DIR; --resume goes on with DIR.")
    console, endpoint = Console(), Endpoint(address=address, tls=tls, nodes=nodes)
    chosen = None if config is None else hofl.read_config(config, changes)
    again = resume and goes_on(console, out, config)
    locks = "" if tls is None else f"--tls {tls} --nodes {nodes} "
    hint = f"hofl server --address {address} {locks}--resume"
    with (
        stoppable(console, out, hint, option="--out"),
        RunDisplay(console, out.name if chosen is None else chosen.method.name) as display,
    ):
        if again or chosen is None:
            result = serve_again(out, endpoint, display)
        else:
            result = serve(chosen, out, endpoint, display)
    shown_result(console, result)
