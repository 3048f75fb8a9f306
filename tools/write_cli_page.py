"""Write docs/cli.md, the reference of the command line, from the commands themselves.

Run: python tools/write_cli_page.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

import click
import typer

from hofl.cli.commands import LazyGroup, app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = 110
INTRODUCTION = """\
# Command line

<!-- Written by tools/write_cli_page.py: change the commands. -->

`hofl COMMAND --help` prints the same. `hofl --install-completion` completes commands and options
in this shell. A mistake ends in one line and exit code 2, Ctrl-C in one line and exit code 130;
commands with `--json` print JSON and nothing else.
"""


def page() -> str:
    """The whole page."""
    top = typer.main.get_command(app)
    assert isinstance(top, LazyGroup)
    lines = [INTRODUCTION]
    for panel, commands in top.table.items():
        lines += [f"## {panel}", ""]
        for name in commands:
            lines += section(top.load(name), f"hofl {name}", "###")
    return "\n".join(lines).rstrip() + "\n"


def section(command: click.Command, words: str, level: str) -> Iterator[str]:
    """A command, then the commands below it."""
    context = click.Context(command, info_name=words)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from [f"{level} {words}", ""]
    for paragraph in (command.help or "").split("\n\n"):
        yield from [fill(" ".join(paragraph.split()), WIDTH, break_on_hyphens=False), ""]
    yield from ["```text", f"{words} {pieces}", "```", ""]
    rows = [row for parameter in command.params if (row := described(parameter, context))]
    if rows:
        yield from ["| written | meaning |", "|---|---|", *rows, ""]
    if isinstance(command, LazyGroup):
        for commands in command.table.values():
            for name in commands:
                yield from section(command.load(name), f"{words} {name}", f"{level}#")
    elif examples := [line.strip("`") for line in (command.epilog or "").split("\\\n\n")[1:]]:
        yield from ["```sh", *examples, "```", ""]


def described(parameter: click.Parameter, context: click.Context) -> str:
    """A row of the table: how a parameter is written, what it means, and its default."""
    text = " ".join((getattr(parameter, "help", None) or "").split())
    if getattr(parameter, "hidden", False) or not text:
        return ""
    if isinstance(parameter, click.Argument):
        written = f"`{parameter.make_metavar(context)}`"
    else:
        names = ", ".join(sorted([*parameter.opts, *parameter.secondary_opts], key=len))
        flag = getattr(parameter, "is_flag", False)
        written = f"`{names}`" if flag else f"`{names} {parameter.make_metavar(context)}`"
    default = parameter.default
    shown = default not in (None, False, "", ()) and not callable(default)
    text += f" Default: `{default}`." if shown and default is not True else ""
    return f"| {written.replace('|', chr(92) + '|')} | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/cli.md is out of date: run python tools/write_cli_page.py")
