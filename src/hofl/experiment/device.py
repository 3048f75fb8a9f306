"""The device's role: the model of a run, with the device's data or a part of the run's task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.data.task import Task
from hofl.engines.client import LocalClient
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.fleet import execution_of, memory_plan_of, strategy_of
from hofl.experiment.method import build_method
from hofl.experiment.model import adapter_of, encoded, model_of
from hofl.experiment.tasks import resolved_task, shards_of
from hofl.memory.capability import capability_of
from hofl.memory.device import Device, DevicePlanner, budget_reader, measured
from hofl.memory.plan import MemoryPlan
from hofl.memory.planner import Planner
from hofl.memory.strategies import STRATEGIES
from hofl.memory.workload import Cost
from hofl.methods import Method


@dataclass(frozen=True)
class DeviceSide:
    """A device's model and data, ready for round plans.

    Args:
        client: computes answers.
        layout: the shared coordinates.
        examples: how many training examples the device holds.
        choose: returns its boundary and execution as of now.
    """

    client: LocalClient
    layout: Layout
    examples: int
    choose: Callable[[], Device]


def build_device(
    config: ExperimentConfig,
    *,
    data: Path | None,
    shard: int | None,
    memory: str,
    limits: Mapping[str, Any] | None = None,
    boundary: int | None = None,
    device: str = "auto",
) -> DeviceSide:
    """Build a device from the server's configuration and its own data.

    Args:
        config: the run's configuration, as the server sent it.
        data: the device's own files; its columns are those of the configuration's [custom].
        shard: in place of ``data``, a client's part of the configuration's task (a rehearsal).
        memory: budget such as ``4GiB``, or ``auto`` for what is free.
        limits: what else it can do and will spend: the other keys of ``fleet.devices``.
        boundary: order boundary in place of the one that the memory allows.
        device: where to compute.
    """
    if (data is None) == (shard is None):
        raise HoflError("a device needs --data FILE_OR_DIR, or --shard NUMBER for a rehearsal.")
    method = build_method(config)
    # Every plan brings w: the adapter that the run starts from is on the server.
    adapter = config.adapter.model_copy(update={"start": None})
    config = config.model_copy(update={"adapter": adapter})
    config, task = resolved_task(config if data is None else _with_files(config, data))
    rows = _rows(config, task, shard)
    model = model_of(config, method, device)
    train, (rows,) = encoded(config, task, task.train, model).grouped([rows])
    choose: Callable[[], Device]
    options: dict[str, Any] = {}
    if boundary is None:
        costs = memory_plan_of(config, method, model.split, train, adapter_of(config), len(rows))
        strategy = strategy_of(config.fleet, method)
        chooser = _chooser(costs, method, strategy, measured(limits or {}, model.split))
        budget = budget_reader(memory, model.split.device)
        headroom = STRATEGIES[strategy].headroom
        choose = planner = DevicePlanner(chooser, method.local, budget, headroom)
        options["cannot_run_backward"] = planner.cannot_run_backward
    else:
        model.split.layout.cut(boundary)  # refuse one that is out of range now
        fixed = Device(boundary, execution_of(config.engine))
        choose = lambda: fixed  # noqa: E731
    client = LocalClient(
        model.split,
        train,
        _OneShard(rows),
        config.task.batch_size,
        lambda _plan: choose().execution,
        start=config.adapter.start_sha256,
        **options,
    )
    return DeviceSide(client, model.split.layout, len(rows), choose)


def _chooser(
    costs: MemoryPlan, method: Method, strategy: str, limits: Mapping[str, Any]
) -> Callable[[int, bool], Cost]:
    """Return how a device's plan is chosen, of its memory and whether it can run backward."""
    planner, chosen = Planner(costs, method), STRATEGIES[strategy]
    able = limits.get("backward", True)

    def choose(memory: int, backward: bool) -> Cost:
        # Without rules of their own, devices that turn out unable have no other plan.
        backward = able and (backward or not chosen.own_rules)
        return chosen.choose(planner, capability_of({**limits, "backward": backward}, memory))

    return choose


class _OneShard(Sequence[np.ndarray]):
    """The device's one shard under any client number that the server gives it."""

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


def _rows(config: ExperimentConfig, task: Task, shard: int | None) -> np.ndarray:
    if shard is None:
        return np.arange(len(task.train))
    shards, _ = shards_of(config, task)
    if not 0 <= shard < len(shards):
        raise HoflError(f"shard {shard} is out of range: use 0 to {len(shards) - 1}.")
    return shards[shard]


def _with_files(config: ExperimentConfig, data: Path) -> ExperimentConfig:
    """Return the configuration with the device's files, same columns and prompt."""
    if config.custom is None:
        raise HoflError(
            f"--data needs a run on custom data, and this one has the task {config.task.name!r}: "
            'give --shard, or set task.name = "custom", "chat" or "text" and a section [custom] on '
            "the server."
        )
    files = str(data)
    custom = config.custom.model_copy(update={"train": files, "test": files, "client_column": None})
    plain = config.data.model_copy(update={"partition": "iid"})
    return config.model_copy(update={"custom": custom, "data": plain})
