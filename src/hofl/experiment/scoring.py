"""Score a model on a task without training it: zero-shot, with a run's adapter, or by a file."""

import json
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.core.process import tune_allocator, use_threads
from hofl.data.task import FreeText, Task
from hofl.evaluation import squad
from hofl.evaluation.scores import Progress
from hofl.evaluation.scores import evaluate as scores_of
from hofl.experiment.checkpoint import load_state
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.model import encoded_test, model_of
from hofl.experiment.runs import RunDirectory
from hofl.experiment.samples import rouge_of
from hofl.experiment.tasks import fixed_examples, task_to_test
from hofl.models.loading import LoadedModel


def evaluate(
    config: ExperimentConfig | None = None,
    run: str | Path | None = None,
    *,
    examples: int = 0,
    predictions: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return scores on a task's test set, without training; training files are not read.

    Args:
        config: model, task, data and engine; the rest is not used. Unset: the run's own.
        run: a run whose latest parameters are scored, instead of the model as it was loaded.
        examples: at most this many, always the same ones; 0 is all.
        predictions: a file of answers that are scored instead of a model's.
        progress: called as examples are done.
    """
    if config is None and run is None:
        raise HoflError("evaluate needs a configuration, or a run.")
    path = None if run is None else Path(run)
    if config is None:
        assert path is not None
        config = config_of(path)
    if predictions is not None:
        if run is not None or examples:
            raise HoflError("predictions are scored on the whole test set without a model.")
        return score_predictions(config, Path(predictions))
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    config, task = task_to_test(config)
    model = model_of(config) if path is None else model_of_run(config, path)
    test = encoded_test(config, task, model)
    chosen = fixed_examples(len(test), examples)
    settings = config.evaluation
    scores = scores_of(model.split, test, settings.batch_size, chosen, progress)
    return {**_facts(config, task, path), **scores, **rouge_of(model.split, test, settings)}


def score_predictions(config: ExperimentConfig, path: Path) -> dict[str, Any]:
    """Score the answers in a file of SQuAD's form, ``{"id": "answer", ...}``, without a model.

    As in the official scorer, a question without an answer counts as wrong, and an answer to a
    question that the set does not ask is passed over; both are counted.
    """
    config, task = task_to_test(config)
    if not isinstance(task.prompt(config.task.prompt).answer, FreeText):
        raise HoflError(
            f"task {task.name!r} has no generated answers: predictions are scored for tasks like "
            "squad only."
        )
    given = _predictions(path)
    asked = {example.fields.get("id", str(n)): example for n, example in enumerate(task.test)}
    if len(asked) < len(task.test):
        raise HoflError(
            f"task {task.name!r} has two questions with the same id, so answers cannot be matched."
        )
    answered = given.keys() & asked.keys()
    if not answered:
        raise HoflError(
            f"{path} answers none of the {len(asked):,} questions of {task.name!r}: its keys must "
            f"be ids such as {next(iter(asked))!r}."
        )
    return {
        **_facts(config, task, None),
        **squad.scores([given.get(key, "") for key in asked], [e.golds for e in asked.values()]),
        "unanswered": len(asked) - len(answered),
        "not_asked": len(given) - len(answered),
        "model": str(path),
    }


def _predictions(path: Path) -> dict[str, str]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HoflError(f"cannot read predictions {path}: {reason}.") from None
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise HoflError(f'{path} must hold one JSON object, {{"id": "answer", ...}}.')
    return given


def config_of(run: str | Path) -> ExperimentConfig:
    """Return the resolved configuration of a run, whose own rows must be as they were written."""
    directory = RunDirectory.open(Path(run))
    directory.check_rows()
    return directory.config()


def model_of_run(config: ExperimentConfig, run: Path) -> LoadedModel:
    """Load the model of a run at its latest parameters."""
    RunDirectory.open(run).finished()  # a damaged adapter is reported, though not used here
    model = model_of(config)
    state = load_state(RunDirectory.open(run), model.split.layout.digest)
    if state is None:
        raise HoflError(f"{run} has no checkpoint yet: its training has not started.")
    model.split.load(state.w.to(model.split.device))
    return model


def _facts(config: ExperimentConfig, task: Task, run: Path | None) -> dict[str, Any]:
    return {
        "model": config.model.name,
        "run": None if run is None else str(run),
        "task": task.name,
        "prompt": config.task.prompt,
        "note": task.note,
    }
