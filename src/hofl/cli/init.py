"""``hofl init``: a first configuration from a model, data and budgets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hofl.cli.display import say
from hofl.core.errors import HoflError

EXAMPLES = {
    "init": (
        "hofl init my.toml --train mails.csv --budget 2GiB,4GiB",
        "hofl init my.toml --train chats.jsonl --test more.jsonl --client user",
        "hofl init my.toml --task sst2 --model Qwen/Qwen2.5-0.5B",
    )
}


def init(
    path: Annotated[Path, typer.Argument(help="The TOML file to write.")],
    model: Annotated[
        str, typer.Option(help="Built-in model, folder, GGUF file or Hugging Face id.")
    ] = "smollm2-135m-instruct",
    train: Annotated[
        Path | None, typer.Option(help="Training file, or a folder of one per client.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Test file; else a fifth of the examples is held out.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task of hofl data in place of files.")] = None,
    budget: Annotated[str, typer.Option(help="Memory of the devices, such as 2GiB,4GiB.")] = "",
    label: Annotated[str | None, typer.Option(help="Column of labels, if not found.")] = None,
    client: Annotated[str | None, typer.Option(help="Column of clients, if not found.")] = None,
) -> None:
    """Write a commented configuration, after a look at the columns of the training file.

    Recognises conversations, labelled texts and plain documents; hofl check shows what they become.
    """
    from hofl.data.columns import first_row, recognise
    from hofl.experiment.draft import draft, write_draft

    if (train is None) == (task is None):
        raise HoflError("give --train FILE for own data, or --task NAME for a task of hofl data.")
    if train is None and (test or label or client):
        raise HoflError("--test, --label and --client belong to --train FILE.")
    if test is not None:
        first_row(test)  # refuse what cannot be read before anything is written
    recognised = None if train is None else recognise(train, label=label, client=client)
    budgets = [word.strip() for word in budget.split(",") if word.strip()]
    write_draft(path, draft(path, model, train, test, recognised, budgets, task))
    console = Console()
    if recognised is not None:
        say(
            console,
            f"{train}: {recognised.rows:,} rows, {recognised.reason}; task {recognised.task}",
        )
    say(console, f"written: {path}. Next: hofl check {path}")
