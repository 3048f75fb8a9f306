"""The two sides of a run on a network: a server without training data, a device with its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from hofl.client import LocalClient
from hofl.errors import HoflError
from hofl.experiment.build import (
    Experiment,
    adapter_of,
    build_method,
    check_fleet,
    encoded,
    resolved,
)
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.tasks import curve_examples, resolved_task, shards_of
from hofl.layout import Layout
from hofl.local.execution import Execution
from hofl.models.loading import LoadedModel, load_model
from hofl.server.checks import UploadLimits


def build_server(config: ExperimentConfig) -> Experiment:
    """Everything the server of a network run needs; the clients and their data are elsewhere."""
    chosen = build_method(config)
    check_fleet(config)
    if config.evaluation.holdout or not config.evaluation.test:
        raise HoflError(
            "evaluation.holdout needs every client's data, and the server of a network run has "
            "none: set evaluation.holdout=0 and evaluation.test=true."
        )
    settled, task = resolved_task(_without_training(config))
    model = _load(settled, settled.engine.device)
    settled = settled.model_copy(update={"data": config.data, "custom": _custom(config, settled)})
    nobody = encoded(settled, task, (), model)
    return Experiment(
        config=resolved(settled, chosen, model, config.fleet.boundaries),
        method=chosen,
        model=model,
        start=model.split.w.cpu().clone(),
        boundaries=(),
        scores=np.zeros(0),
        train=nobody,
        held_out=(),
        test=encoded(settled, task, task.test, model),
        curve=curve_examples(settled, task),
        client=LocalClient(model.split, nobody, (), config.task.batch_size),
        limits=UploadLimits(max_norm=config.server.max_norm, max_scalar=config.server.max_scalar),
        note=task.note,
    )


@dataclass(frozen=True)
class DeviceSide:
    """A device's model and data, ready for plans.

    Args:
        client: computes answers.
        layout: the shared coordinates.
        examples: how many training examples the device holds.
    """

    client: LocalClient
    layout: Layout
    examples: int


def build_device(
    config: ExperimentConfig, *, data: Path | None, shard: int | None, device: str = "auto"
) -> DeviceSide:
    """A device from the server's configuration and its own data.

    Args:
        config: the run's configuration, as the server sent it.
        data: the device's own files; its columns are those of the configuration's [custom].
        shard: instead of own data, this client's part of the configuration's task (a rehearsal).
        device: where to compute.
    """
    if (data is None) == (shard is None):
        raise HoflError("a device needs --data FILE_OR_DIR, or --shard NUMBER for a rehearsal.")
    if data is not None:
        config = _with_own(config, data)
    config, task = resolved_task(config)
    if shard is None:
        own = np.arange(len(task.train))
    else:
        shards, _ = shards_of(config, task)
        if not 0 <= shard < len(shards):
            raise HoflError(f"shard {shard} is out of range: the task has {len(shards)} shards.")
        own = shards[shard]
    model = _load(config, device)
    execution = Execution(micro_batch=config.engine.micro_batch)
    train = encoded(config, task, task.train, model)
    client = LocalClient(model.split, train, _Always(own), config.task.batch_size, execution)
    return DeviceSide(client, model.split.layout, len(own))


class _Always(Sequence[np.ndarray]):
    """A device has one shard, whatever number the server gives it."""

    def __init__(self, shard: np.ndarray) -> None:
        self._shard = shard

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._shard

    def __len__(self) -> int:
        return 1


def _load(config: ExperimentConfig, device: str) -> LoadedModel:
    return load_model(
        config.model.name,
        adapter=adapter_of(config),
        seed=config.seed,
        weights=config.model.weights,
        storage_dtype=config.model.storage_dtype,
        compute_dtype=config.model.compute_dtype,
        device=device,
    )


def _without_training(config: ExperimentConfig) -> ExperimentConfig:
    """Own training files are on the devices: the server reads the test files alone."""
    if config.custom is None:
        return config
    custom = config.custom.model_copy(update={"train": config.custom.test, "client_column": None})
    return config.model_copy(update={"custom": custom})


def _custom(config: ExperimentConfig, settled: ExperimentConfig) -> Any:
    """The section as it was given, with the test files written out in full."""
    if config.custom is None or settled.custom is None:
        return None
    return config.custom.model_copy(update={"test": settled.custom.test})


def _with_own(config: ExperimentConfig, data: Path) -> ExperimentConfig:
    """The same columns and prompt, read from the device's files."""
    if config.custom is None:
        raise HoflError(
            f"the run trains on the task {config.task.name!r}, not on own data: it takes devices "
            'with --shard, or a configuration with task.name = "custom" and a section [custom].'
        )
    files = str(data)
    custom = config.custom.model_copy(update={"train": files, "test": files, "client_column": None})
    plain = config.data.model_copy(update={"partition": "iid"})
    return config.model_copy(update={"custom": custom, "data": plain})
