"""All commands of ``hofl``. A command's module is imported when the command is used.

Command modules import libraries of models inside their functions: help and shell completion must
not wait for them.
"""

from importlib import import_module
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from hofl.cli import interrupts
from hofl.core.version import VERSION

Table = dict[str, dict[str, tuple[str, str]]]
"""Panel of the help -> command -> its module in ``hofl.cli`` and one line about it.

The command is the module's function of that name; the module's EXAMPLES show how to call it.
"""
COMMANDS: Table = {
    "Train and evaluate": {
        "demo": ("run", "Compare four methods on a real model, in a few minutes."),
        "init": ("init", "Write a first configuration for a model and data."),
        "check": ("check", "Check a configuration and estimate how long it will take."),
        "run": ("run", "Run an experiment, or resume one."),
        "split": ("split", "Run HO-SFL, HOSL or HERON-SFL between clients and a server."),
        "compare": ("compare", "Compare methods over seeds and a grid, in one table."),
        "watch": ("watch", "Show how far runs are, here or live in a browser."),
        "paper": ("paper", "Show or run the paper's tables and figures."),
        "repair": ("audit", "Bring a damaged run back to work."),
        "audit": ("audit", "Check a run's audit log and print its story."),
        "report": ("report", "Write a page with curves, tables and origins of runs."),
        "curve": ("curve", "Show scores and training losses of runs, round by round."),
        "evaluate": ("evaluate", "Score a model, a run or a file of answers on a task."),
    },
    "Use a result": {
        "chat": ("result", "Talk to a run's model in the terminal."),
        "merge": ("result", "Merge a run's adapter into its base model."),
        "push": ("result", "Upload a result to the Hugging Face hub."),
    },
    "Train with real devices": {
        "fleet": ("server", "Rehearse: a server and all its devices on this machine."),
        "certs": ("server", "Make the certificates and keys of a fleet."),
        "server": ("server", "Serve a run to devices on a network."),
        "device": ("device", "Lend this machine, its memory and its data to a run."),
    },
    "Plan memory": {
        "plan": ("plan", "Choose what a device runs, and predict what it takes."),
        "memory": ("memory", "Predict the memory of a whole cohort."),
        "profile": ("profile", "Measure the memory of real participations."),
    },
    "Choose clients": {
        "sample": ("sample", "Show who takes part how often, without training."),
        "beta": ("beta", "Choose beta, the preference for small zeroth-order parts."),
        "theory": ("theory", "Print the convergence bound against beta."),
    },
    "Look up": {
        "config": ("config", "Show, compare and describe configurations."),
        "methods": ("catalogue", "List the federated methods, or explain one."),
        "models": ("catalogue", "List the built-in models, or fetch one."),
        "data": ("data", "Show a task's examples, clients and prompts."),
    },
}
BETA: Table = {
    "Commands": {
        "guide": ("beta", "Give the paper's starting value for a scenario."),
        "coverage": ("beta", "Show what beta leaves to each client and tier."),
        "pilot": ("pilot", "Compare betas by short runs with successive halving."),
        "measure": ("measure", "Measure updates before training; compare policies."),
    }
}
CONFIG: Table = {
    "Commands": {
        "show": ("config", "Print every value and where it comes from."),
        "diff": ("config", "Print the values in which two configurations differ."),
        "schema": ("config", "Print the JSON schema of configuration files."),
    }
}
GROUPS: dict[str, tuple[Table, str, tuple[str, ...]]] = {
    "beta": (
        BETA,
        "Choose beta, the preference for devices with small zeroth-order parts.",
        (
            "hofl beta guide --data skewed",
            "hofl beta coverage --clients 30 --cohort 6 --min-participations 16",
            "hofl beta pilot demo fleet.strategy=paper --rounds 8 --out runs/pilot",
            "hofl beta measure demo --out runs/measured",
        ),
    ),
    "config": (
        CONFIG,
        "Show, compare and describe configurations.",
        (
            "hofl config show demo rounds=3",
            "hofl config diff runs/a runs/b",
            "hofl config schema > hofl.schema.json",
        ),
    ),
}
"""Commands that have commands of their own: those, one line about them, and examples."""


def examples(*lines: str) -> str:
    """Return the lines as the end of a help text, each on a line of its own."""
    heading = "Examples:" if len(lines) > 1 else "Example:"
    # In Markdown a backslash at the end keeps the line apart from the next.
    return "\\\n\n".join([heading, *(f"`{line}`" for line in lines)])


class LazyGroup(TyperGroup):
    """Commands that are known by name and line until one of them is used."""

    table: Table = {}  # noqa: RUF012 -- replaced, never changed

    def __init__(self, *, table: Table | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.table = table or type(self).table
        self.commands = {
            name: TyperCommand(name, help=line, rich_help_panel=panel)
            for panel, commands in self.table.items()
            for name, (_, line) in commands.items()
        }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Load the command that is named."""
        name, entry, rest = super().resolve_command(ctx, args)
        if name is None or entry is None:
            return name, entry, rest
        command = self.load(name)
        interrupts.check()
        return name, command, rest

    def load(self, name: str) -> click.Command:
        """Import a command's module and return the whole command."""
        module = next(panel[name][0] for panel in self.table.values() if name in panel)
        home = import_module(f"hofl.cli.{module}")
        maker = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
        )
        maker.command(name, epilog=examples(*home.EXAMPLES[name]))(getattr(home, name))
        return typer.main.get_command(maker)


class TopGroup(LazyGroup):
    """The commands of ``hofl``. Ctrl-C ends them in one line."""

    table = COMMANDS

    def load(self, name: str) -> click.Command:
        """Import a command's module and return the whole command."""
        if name not in GROUPS:
            return super().load(name)
        table, line, lines = GROUPS[name]
        return LazyGroup(
            table=table,
            name=name,
            help=line,
            epilog=examples(*lines),
            no_args_is_help=True,
            rich_markup_mode="markdown",
            suggest_commands=False,
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="hofl",
    cls=TopGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=False,  # click does
    epilog=examples("hofl demo", "hofl run sst2 method.name=fedprox --out runs/prox"),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hofl {VERSION}")
        raise typer.Exit


@app.callback()
def hofl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Federated fine-tuning of language models on devices that differ in memory."""
