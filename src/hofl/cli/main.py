"""``hofl``: the entry point. A mistake of the user ends in one line, never in a traceback."""

import signal
import sys
from typing import Any

import typer
from rich.console import Console

from hofl.cli import (
    beta,
    certs,
    check,
    curve,
    data,
    demo,
    device,
    evaluate,
    fleet,
    memory,
    methods,
    models,
    plan,
    profile,
    run,
    sample,
    server,
    theory,
)
from hofl.errors import HoflError

app = typer.Typer(
    name="hofl",
    help="Federated fine-tuning of language models on devices that differ in memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Example:\n\n`hofl demo`",
)
app.command("run", epilog=run.EXAMPLE)(run.run)
app.command("demo", epilog=demo.EXAMPLE)(demo.demo)
app.command("server", epilog=server.EXAMPLE)(server.server)
app.command("device", epilog=device.EXAMPLE)(device.device)
app.command("fleet", epilog=fleet.EXAMPLE)(fleet.fleet)
app.command("plan", epilog=plan.EXAMPLE)(plan.plan)
app.command("profile", epilog=profile.EXAMPLE)(profile.profile)
app.command("memory", epilog=memory.EXAMPLE)(memory.memory)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("curve", epilog=curve.EXAMPLE)(curve.curve)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("data", epilog=data.EXAMPLE)(data.data)
app.command("sample", epilog=sample.EXAMPLE)(sample.sample)
app.command("methods", epilog=methods.EXAMPLE)(methods.methods)
app.command("models", epilog=models.EXAMPLE)(models.models)
app.command("theory", epilog=theory.EXAMPLE)(theory.theory)
app.command("certs", epilog=certs.EXAMPLE)(certs.certs)
app.add_typer(beta.app)


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except HoflError as error:
        Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False)
        sys.exit(2)


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
