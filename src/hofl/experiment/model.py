"""From the model, adapter and task sections of a configuration to a model and encoded examples."""

from collections.abc import Sequence

import numpy as np

from hofl.core.errors import HoflError
from hofl.data.encoded import EncodedSet
from hofl.data.encoding import encode
from hofl.data.task import Example, Task
from hofl.experiment.config import ExperimentConfig
from hofl.local.step import LocalParts
from hofl.methods import Method
from hofl.methods import method as named_method
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import LoadedModel, load_model


def encoded(
    config: ExperimentConfig, task: Task, examples: Sequence[Example], model: LoadedModel
) -> EncodedSet:
    """Encode examples with the model's tokenizer, within its window."""
    max_length = config.task.max_length
    assert max_length is not None, "set by resolved_task"
    window = getattr(model.split.config, "max_position_embeddings", max_length)
    if max_length > window:
        raise HoflError(
            f"task.max_length {max_length} exceeds the model's window of {window}: lower it."
        )
    prompt = task.prompt(config.task.prompt)
    result = encode(examples, prompt, model.tokenizer, max_length, window)
    if len(result):
        result.encoded(0)  # refuse a cap shorter than the template before anything runs
    return result


def encoded_test(config: ExperimentConfig, task: Task, model: LoadedModel) -> EncodedSet:
    """Encode the test set; documents of different clients share no window."""
    owners = np.zeros(len(task.test)) if task.test_clients is None else task.test_clients
    groups = [np.flatnonzero(owners == owner) for owner in np.unique(owners)]
    return encoded(config, task, task.test, model).grouped(groups)[0]


def model_of(
    config: ExperimentConfig, method: Method | None = None, device: str | None = None
) -> LoadedModel:
    """Load the model that a configuration names, with the adapter and surrogate it trains."""
    # Scoring asks for the model alone: the method's other parts may live in a user's module.
    rule = (method or named_method(config.method.name, **config.method.options())).local
    surrogate = LocalParts.of(rule, 1).surrogate
    return load_model(
        config.model.name,
        adapter=adapter_of(config),
        seed=config.seed,
        weights=config.model.weights,
        storage_dtype=config.model.storage_dtype,
        compute_dtype=config.model.compute_dtype,
        device=device or config.engine.device,
        stream=config.engine.stream_bottom,
        surrogate=surrogate.parameters,
    )


def adapter_of(config: ExperimentConfig) -> Lora | FullBlocks:
    """Return the adapter that is trained; refuse a precision that it cannot have."""
    fields = config.adapter
    if fields.kind == "lora":
        return Lora(rank=fields.rank, alpha=fields.alpha, targets=fields.targets)
    if config.model.compute_dtype not in ("auto", "float32"):
        raise HoflError("adapter.kind=full trains FP32 weights: set model.compute_dtype=float32.")
    return FullBlocks()
