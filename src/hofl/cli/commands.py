"""All commands of ``hofl``. Loading this takes seconds: the model libraries come with it."""

from typing import Any

import typer
from typer.core import TyperGroup

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


class Commands(TyperGroup):
    """Commands that Ctrl-C ends in one line, wherever it finds them."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="hofl",
    cls=Commands,
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
