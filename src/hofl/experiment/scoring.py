"""Score a model on a task without training it: zero-shot, or with the adapter of a run."""

from pathlib import Path
from typing import Any

from hofl.data.task import Task
from hofl.errors import HoflError
from hofl.evaluation.scores import Progress, evaluate
from hofl.experiment.build import adapter_of, encoded
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tasks import fixed_examples, resolved_task
from hofl.models.loading import LoadedModel, load_model


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


def config_of(run: Path) -> ExperimentConfig:
    """The resolved configuration of a run."""
    return RunDirectory.open(run).config()


def _model(config: ExperimentConfig, run: Path | None) -> LoadedModel:
    model = load_model(
        config.model.name,
        adapter=adapter_of(config),
        seed=config.seed,
        weights=config.model.weights,
        storage_dtype=config.model.storage_dtype,
        compute_dtype=config.model.compute_dtype,
        device=config.engine.device,
    )
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
