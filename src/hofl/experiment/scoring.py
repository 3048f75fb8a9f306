"""Score a model on a task without training it: zero-shot, with a run's adapter, or by a file."""

import json
from pathlib import Path
from typing import Any

from hofl.data.task import FreeText, Task
from hofl.errors import HoflError
from hofl.evaluation import squad
from hofl.evaluation.scores import Progress, evaluate
from hofl.experiment.build import encoded, model_of
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tasks import fixed_examples, resolved_task
from hofl.models.loading import LoadedModel


def score(
    config: ExperimentConfig,
    run: Path | None = None,
    examples: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores on the test set.

    Args:
        config: model, task and data; the rest is not used.
        run: a run whose latest parameters are scored, instead of the model as it was loaded.
        examples: at most this many, always the same ones; 0 is all.
        progress: called as examples are done.
    """
    config, task = resolved_task(config)
    model = _model(config, run)
    test = encoded(config, task, task.test, model)
    chosen = fixed_examples(len(test), examples)
    scores = evaluate(model.split, test, config.evaluation.batch_size, chosen, progress)
    return {**_facts(config, task, run), **scores}


def score_predictions(config: ExperimentConfig, path: Path) -> dict[str, Any]:
    """Scores of answers in a file of SQuAD's form, ``{"id": "answer", ...}``; no model is used.

    As in the official scorer, a question without an answer counts as wrong.
    """
    config, task = resolved_task(config)
    if not isinstance(task.prompt(config.task.prompt).answer, FreeText):
        raise HoflError(f"task {task.name!r} has no written answers: a file is of no use.")
    given = _predictions(path)
    asked = {example.fields.get("id", str(n)): example for n, example in enumerate(task.test)}
    unknown = sorted(set(given) - set(asked))
    if unknown:
        raise HoflError(f"{path} answers {unknown[0]!r}, which {task.name!r} does not ask.")
    scores = squad.scores([given.get(key, "") for key in asked], [e.golds for e in asked.values()])
    found = {**_facts(config, task, None), **scores, "unanswered": len(asked) - len(given)}
    return {**found, "model": str(path)}


def _predictions(path: Path) -> dict[str, str]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HoflError(f"cannot read predictions {path}: {error}.") from None
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise HoflError(f'{path} must hold one JSON object, {{"id": "answer", ...}}.')
    return given


def config_of(run: Path) -> ExperimentConfig:
    """The resolved configuration of a run."""
    return RunDirectory.open(run).config()


def _model(config: ExperimentConfig, run: Path | None) -> LoadedModel:
    model = model_of(config)
    if run is not None:
        state = RunDirectory.open(run).load_state(model.split.layout.digest)
        if state is None:
            raise HoflError(f"{run} has no checkpoint yet: its training has not begun.")
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
