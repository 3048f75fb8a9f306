"""The two sides of a run on a network: a server without training data, a device with its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from hofl.client import LocalClient
from hofl.data.task import Task
from hofl.errors import HoflError
from hofl.experiment.build import (
    Experiment,
    adapter_of,
    build_method,
    encoded,
    model_of,
    resolved,
)
from hofl.experiment.config import CustomConfig, ExperimentConfig
from hofl.experiment.fleet import check_fleet, execution_of, memory_plan_of
from hofl.experiment.protection import check_limits, privacy_of
from hofl.experiment.tasks import curve_examples, resolved_task, shards_of
from hofl.layout import Layout
from hofl.planning.fleet import Device, FleetPlan
from hofl.planning.own import OwnDevice, own_budget
from hofl.server.checks import UploadLimits


def build_server(config: ExperimentConfig) -> Experiment:
    """Everything the server of a network run needs; the clients and their data are elsewhere."""
    chosen = build_method(config)
    check_fleet(config)
    private = privacy_of(config.privacy)
    if config.evaluation.holdout or not config.evaluation.test:
        raise HoflError(
            "evaluation.holdout needs every client's data, and the server of a network run has "
            "none: set evaluation.holdout=0 and evaluation.test=true."
        )
    settled, task = resolved_task(_without_training(config))
    model = model_of(settled)
    settled = settled.model_copy(update={"data": config.data, "custom": _custom(config, settled)})
    nobody = encoded(settled, task, (), model)
    experiment = Experiment(
        config=resolved(settled, chosen, model, config.fleet),
        method=chosen,
        model=model,
        start=model.split.w.cpu().clone(),
        fleet=FleetPlan(()),
        memory_plan={},
        train=nobody,
        held_out=(),
        test=encoded(settled, task, task.test, model),
        curve=curve_examples(settled, task),
        client=LocalClient(model.split, nobody, (), config.task.batch_size),
        limits=UploadLimits(max_norm=config.server.max_norm, max_scalar=config.server.max_scalar),
        privacy=private,
        note=task.note,
    )
    if private is not None:
        check_limits(private, experiment.limits, chosen.local, experiment.layout.size)
    return experiment


@dataclass(frozen=True)
class DeviceSide:
    """A device's model and data, ready for plans.

    Args:
        client: computes answers.
        layout: the shared coordinates.
        examples: how many training examples the device holds.
        own: its boundary and way to run steps, as of now.
    """

    client: LocalClient
    layout: Layout
    examples: int
    own: Callable[[], Device]


def build_device(
    config: ExperimentConfig,
    *,
    data: Path | None,
    shard: int | None,
    memory: str,
    boundary: int | None = None,
    device: str = "auto",
) -> DeviceSide:
    """A device from the server's configuration and its own data.

    Args:
        config: the run's configuration, as the server sent it.
        data: the device's own files; its columns are those of the configuration's [custom].
        shard: instead of own data, this client's part of the configuration's task (a rehearsal).
        memory: budget such as ``4GiB``, or ``auto`` for what is free.
        boundary: order boundary in place of the one that the memory allows.
        device: where to compute.
    """
    if (data is None) == (shard is None):
        raise HoflError("a device needs --data FILE_OR_DIR, or --shard NUMBER for a rehearsal.")
    config, task = resolved_task(config if data is None else _with_own(config, data))
    rows = _own_rows(config, task, shard)
    model = model_of(config, device)
    train = encoded(config, task, task.train, model)
    own: Callable[[], Device]
    if boundary is None:
        method, adapter = build_method(config), adapter_of(config)
        costs = memory_plan_of(config, method, model.split, train, adapter)
        own = OwnDevice(costs, config.fleet.strategy, own_budget(memory, model.split.device))
    else:
        model.split.layout.cut(boundary)  # out of range is told now
        fixed = Device(boundary, execution_of(config))
        own = lambda: fixed  # noqa: E731
    client = LocalClient(
        model.split, train, _Always(rows), config.task.batch_size, lambda _plan: own().execution
    )
    return DeviceSide(client, model.split.layout, len(rows), own)


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


def _own_rows(config: ExperimentConfig, task: Task, shard: int | None) -> np.ndarray:
    if shard is None:
        return np.arange(len(task.train))
    shards, _ = shards_of(config, task)
    if not 0 <= shard < len(shards):
        raise HoflError(f"shard {shard} is out of range: the task has {len(shards)} shards.")
    return shards[shard]


def _without_training(config: ExperimentConfig) -> ExperimentConfig:
    """Own training files are on the devices: the server reads the test files alone."""
    if config.custom is None:
        return config
    custom = config.custom.model_copy(update={"train": config.custom.test, "client_column": None})
    return config.model_copy(update={"custom": custom})


def _custom(config: ExperimentConfig, settled: ExperimentConfig) -> CustomConfig | None:
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
