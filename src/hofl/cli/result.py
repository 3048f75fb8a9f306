"""``hofl chat``, ``hofl merge`` and ``hofl push``: try a result, keep it, share it."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.core.errors import HoflError
from hofl.core.sizes import show_bytes

EXAMPLES = {
    "chat": ("hofl chat runs/a", "echo 'Where is my parcel?' | hofl chat runs/a"),
    "merge": ("hofl merge runs/a --out merged",),
    "push": ("hofl push runs/a ada/helpdesk-lora", "hofl push merged ada/helpdesk --yes"),
}
Run = Annotated[Path, typer.Argument(help="Folder of the run.")]


def chat(
    run: Run,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
) -> None:
    """Talk to a run's model at its latest parameters, one line at a time; greedy answers.

    /new starts another conversation, /quit or Ctrl-D ends it. Lines may come from a pipe.
    """
    console, typed = Console(), sys.stdin.isatty()
    with console.status("loading the model"):  # shown on a terminal alone
        interrupts.load("hofl.experiment.talk")
        from hofl.experiment.talk import talk_to

        talk = talk_to(run, max_new_tokens)
    if typed:
        say(console, f"{talk.about}; /new starts again, /quit ends", "dim")
    while (line := _line(console, typed)) is not None:
        interrupts.check()
        if line == "/new":
            talk.messages.clear()
        elif line:
            try:
                say(console, talk.answer(line))
            except HoflError as error:
                say(console, f"error: {error}", "red")


def merge(
    run: Run, out: Annotated[Path, typer.Option(help="New folder for the whole model.")]
) -> None:
    """Merge a run's adapter into its base model: an ordinary model folder with its tokenizer."""
    from hofl.experiment.launch import readable_errors
    from hofl.experiment.publish import merge as merged

    interrupts.check()
    with Console().status("merging"), readable_errors(out):
        merged(run, out)
    say(Console(), f"merged model: {out}")


def push(
    source: Annotated[Path, typer.Argument(help="Folder of a finished run, or of hofl merge.")],
    repo: Annotated[str, typer.Argument(help="Repository on the Hugging Face hub, OWNER/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new one private.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Really upload.")] = False,
) -> None:
    """Upload an adapter or a merged model with its card; without --yes only list what would go."""
    from hofl.experiment.publish import publication

    console, going = Console(), publication(source, repo, private)
    for name, size in going.files.items():
        say(console, f"{show_bytes(size):>10}  {name}")
    for note in going.notes:
        say(console, f"note: {note}", "yellow")
    if yes:
        say(console, f"uploaded: {going.upload()}")
        return
    kind = "private " if private else ""
    say(
        console,
        f"nothing was uploaded: with --yes these {len(going.files)} files go to the {kind}"
        f"repository {repo}, card included (README.md).",
    )


def _line(console: Console, typed: bool) -> str | None:
    """Return the next line without white space around it; None at the end."""
    try:
        line = console.input("> ", markup=False) if typed else input()
    except (EOFError, UnicodeDecodeError):
        return None
    return None if line.strip() == "/quit" else line.strip()
