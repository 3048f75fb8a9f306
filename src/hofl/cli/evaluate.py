"""``hofl evaluate``: a model's scores on a task, as it is or as a run has trained it."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import hofl
from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.cli.options import AsJson
from hofl.core.errors import HoflError
from hofl.experiment.records import HEADLINES

EXAMPLES = {
    "evaluate": (
        "hofl evaluate --model smollm2-135m-instruct --task sst2",
        "hofl evaluate --run runs/sst2 --prompt it-was",
        "hofl evaluate --task squad --predictions answers.json",
    )
}


def evaluate(
    model: Annotated[
        str | None, typer.Option(help="Built-in model, folder or Hugging Face id.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task, as in hofl data.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run: its model, task and adapter.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help='Score answers in a file, {"id": "answer", ...}.')
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt variant.")] = None,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Folder with the files; or set HOFL_DATA.")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="At most this many, always the same ones; 0 is all.")
    ] = 0,
    max_length: Annotated[int | None, typer.Option(min=2, help="Most tokens of a prompt.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Examples at a time.", show_default="16, or the run's"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on a task's test set without training it."""
    if predictions is not None and (model is not None or run is not None or examples):
        raise HoflError(
            "--predictions are scored on the whole test set without a model: give --task alone."
        )
    config = _config(str(predictions) if predictions else model, task, run)
    changes: dict[str, dict[str, Any]] = {
        "task": {"prompt": prompt, "max_length": max_length},
        "data": {"dir": directory},
        "evaluation": {"batch_size": batch_size},
    }
    for section, values in changes.items():
        given = {key: value for key, value in values.items() if value is not None}
        new = getattr(config, section).model_copy(update=given)
        config = config.model_copy(update={section: new})
    began = time.perf_counter()
    if predictions is not None:
        scores = hofl.evaluate(config, predictions=predictions)
    else:
        scores = _scored(config, run, examples, quiet=as_json)
    scores["seconds"] = round(time.perf_counter() - began, 1)
    if as_json:
        typer.echo(json.dumps(scores))
        return
    if scores["note"]:
        say(Console(), f"note: {scores['note']}", "yellow")
    shares = [name for name in (*HEADLINES, "em") if name in scores]
    parts = [f"{name.replace('_', ' ')} {100 * scores[name]:.2f} %" for name in shares]
    parts += [f"{name} {scores[name]:.4f}" for name in ("loss", "perplexity") if name in scores]
    if "tokens" in scores:
        parts.append(f"{scores['tokens']:,} tokens")
    parts.append(f"{scores['examples']:,} examples")
    if scores.get("unanswered"):
        parts.append(f"{scores['unanswered']:,} of them unanswered")
    if scores.get("not_asked"):
        parts.append(f"{scores['not_asked']:,} answers to other questions passed over")
    where = f"{scores['task']} ({scores['prompt']}), {scores['model']}"
    say(Console(), f"{where}: {', '.join(parts)}, {scores['seconds']} s")


def _scored(
    config: hofl.ExperimentConfig, run: Path | None, examples: int, quiet: bool
) -> dict[str, Any]:
    console = Console(stderr=True)
    with Progress(
        TextColumn("evaluating"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} examples"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    ) as bar:
        shown = bar.add_task("", total=1)

        def progress(done: int, of: int) -> None:
            interrupts.check()
            bar.update(shown, completed=done, total=of)

        interrupts.load("hofl.experiment.scoring")  # takes seconds
        return hofl.evaluate(config, run=run, examples=examples, progress=progress)


def _config(model: str | None, task: str | None, run: Path | None) -> hofl.ExperimentConfig:
    if run is not None:
        if model is not None or task is not None:
            raise HoflError("--run names its model and task itself: give no --model or --task.")
        return hofl.config_of(run)
    if model is None or task is None:
        raise HoflError("give --model and --task, or --run DIR (see --help).")
    return hofl.ExperimentConfig(
        model=hofl.ModelConfig(name=model), task=hofl.TaskConfig(name=task)
    )
