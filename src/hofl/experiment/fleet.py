"""From a configuration to the devices of a run: boundaries given, or planned from budgets."""

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hofl.core.errors import HoflError
from hofl.core.sizes import AUTO, parse_bytes
from hofl.data.encoded import EncodedSet
from hofl.experiment.config import EngineConfig, ExperimentConfig
from hofl.experiment.fleet_config import ChangeConfig, DeviceConfig, FleetConfig, PlannedConfig
from hofl.experiment.tasks import fleet_seed
from hofl.local.site import Execution
from hofl.memory.capability import capability_of
from hofl.memory.device import FREE, Device, budget_bytes
from hofl.memory.hollow import hollow_model
from hofl.memory.plan import MemoryPlan
from hofl.memory.planner import Planner
from hofl.memory.strategies import STRATEGIES, check_method, planned_facts
from hofl.memory.workload import heaviest_workload
from hofl.methods import Method
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.files import dtype_in_files
from hofl.models.loading import DTYPES
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.sampling.tiers import deal, deal_tiers
from hofl.variants import changes_of


@dataclass(frozen=True)
class FleetPlan:
    """Boundary and execution of every device in every round.

    A function of the round alone, so a resumed run has the same devices.

    Args:
        start: the N devices.
        changes: (t, i, device) replaces client i's device from round t on; in order of rounds.
    """

    start: tuple[Device, ...]
    changes: tuple[tuple[int, int, Device], ...] = ()

    def epoch(self, round_number: int) -> int:
        """Count the changes up to round t; rounds of one epoch have the same devices."""
        return sum(since <= round_number for since, _, _ in self.changes)

    def at(self, round_number: int) -> tuple[Device, ...]:
        """Return the devices of round t, [N]."""
        devices = list(self.start)
        for _, client, device in self.changes[: self.epoch(round_number)]:
            devices[client] = device
        return tuple(devices)


@dataclass(frozen=True)
class BuiltFleet:
    """The devices, the configuration that reproduces them, and the memory plan behind them.

    Args:
        plan: the devices of every round.
        config: ``fleet`` with every choice recorded.
        facts: the memory plan, as plain values; empty when boundaries were given.
    """

    plan: FleetPlan
    config: FleetConfig
    facts: dict[str, Any] = field(default_factory=dict)


def build_fleet(
    config: ExperimentConfig,
    method: Method,
    model: SplitModel,
    train: EncodedSet,
    adapter: Lora | FullBlocks,
    smallest_shard: int,
) -> BuiltFleet:
    """Deal boundaries by tier, or deal devices by tier and plan what each of them runs."""
    fleet = config.fleet
    tiers = tiers_of(fleet)
    if not tiers:
        return _with_boundaries(config, model.num_blocks)
    if fleet.boundaries and not fleet.planned:
        raise HoflError("give fleet.boundaries or fleet.budgets, not both: budgets decide them.")
    # What is free now is recorded as an amount, so that a resumed run has the same devices.
    tiers = [
        _with_memory(t, str(budget_bytes(t.memory, model.device)))
        if t.memory in (AUTO, FREE)
        else t
        for t in tiers
    ]
    name = "fleet.devices" if fleet.devices else "fleet.budgets"
    dealt = deal(tiers, fleet.clients, fleet_seed(config), name)
    changes = _changes(fleet)
    later = [_with_memory(dealt[change.client], change.budget) for change in changes]
    facts: dict[str, Any] = {}
    strategy, planned = strategy_of(fleet, method), fleet.planned
    if not planned:
        wanted = {device_key(device): device for device in (*dealt, *later)}
        memory = memory_plan_of(config, method, model, train, adapter, smallest_shard)
        planned, facts = _planned(memory, method, wanted, strategy, config.model.name)
    devices = {row.budget: Device(row.boundary, execution_of(row), row.rule) for row in planned}
    moves = zip(changes, later, strict=True)
    plan = FleetPlan(
        tuple(devices[device_key(device)] for device in dealt),
        tuple((c.round - 1, c.client, devices[device_key(device)]) for c, device in moves),
    )
    recorded: dict[str, Any] = {
        "boundaries": tuple(device.boundary for device in plan.start),
        "budgets": () if fleet.devices else tuple(device.memory for device in dealt),
        "devices": dealt if fleet.devices else (),
        "strategy": strategy,
        "memory_trace": None,
        "changes": changes,
        "planned": planned,
    }
    return BuiltFleet(plan, fleet.model_copy(update=recorded), facts)


def _with_boundaries(config: ExperimentConfig, num_blocks: int) -> BuiltFleet:
    """Deal the boundaries that are given, or the paper's, to devices that run all alike."""
    fleet = config.fleet
    if fleet.memory_trace or fleet.changes:
        raise HoflError(
            "a memory trace changes budgets, and there are none: list them in fleet.budgets."
        )
    boundaries = deal_tiers(
        fleet.boundaries, fleet.clients, num_blocks, fleet_seed(config), "fleet.boundaries"
    )
    plan = FleetPlan(tuple(Device(b, execution_of(config.engine)) for b in boundaries))
    return BuiltFleet(plan, fleet.model_copy(update={"boundaries": boundaries}))


def tiers_of(fleet: FleetConfig) -> list[DeviceConfig]:
    """Return the tiers of devices that are planned; none where boundaries are given."""
    if fleet.devices and fleet.budgets:
        raise HoflError("give fleet.devices or fleet.budgets, not both: a budget is a device.")
    return [*fleet.devices] or [DeviceConfig(memory=budget) for budget in fleet.budgets]


def device_key(device: DeviceConfig) -> str:
    """Name a device by what it can do; one that differs in memory alone, by its memory."""
    limits = device.model_dump(exclude={"memory", "backward"}, exclude_none=True)
    words = [device.memory, *(f"{name} {value}" for name, value in limits.items())]
    return ", ".join(words if device.backward else [*words, "no backward"])


def _with_memory(device: DeviceConfig, memory: str) -> DeviceConfig:
    return device.model_copy(update={"memory": memory})


def strategy_of(fleet: FleetConfig, method: Method) -> str:
    """Return the strategy's name; refuse own rules where one boundary holds for all."""
    name = fleet.strategy or ("paper" if method.one_boundary else "best")
    check_method(name, method)
    return name


def memory_plan_of(
    config: ExperimentConfig,
    method: Method,
    model: SplitModel,
    train: EncodedSet,
    adapter: Lora | FullBlocks,
    smallest_shard: int,
) -> MemoryPlan:
    """Return the memory plan of this run: costs of its heaviest step at every boundary."""
    stored = config.model.storage_dtype
    hollow = hollow_model(
        model.config,
        adapter=adapter,
        storage_dtype=DTYPES.get(stored, torch.float32),
        compute_dtype=model.compute_dtype,
        form=stored if stored in FORMS else None,
        file_dtype=dtype_in_files(model.on_disk),
    )
    work = heaviest_workload(train, method.local, config.task.batch_size, smallest_shard)
    base, streaming = execution_of(config.engine), bool(model.on_disk)
    return MemoryPlan(hollow, work, base, streaming, stored)


def _planned(
    memory: MemoryPlan,
    method: Method,
    wanted: Mapping[str, DeviceConfig],
    strategy: str,
    name: str,
) -> tuple[tuple[PlannedConfig, ...], dict[str, Any]]:
    """Return the choice for each device, and the plan behind it as plain values."""
    able = {
        key: capability_of(device.model_dump(), parse_bytes(device.memory))
        for key, device in wanted.items()
    }
    chosen, facts = planned_facts(STRATEGIES[strategy], Planner(memory, method), able, name)
    planned = tuple(
        PlannedConfig(
            budget=key,
            boundary=cost.boundary,
            rule=changes_of(method.local, cost.rule),
            **asdict(cost.execution),
        )
        for key, cost in chosen.items()
    )
    return planned, facts


def execution_of(section: EngineConfig | PlannedConfig) -> Execution:
    """Return the execution of steps that a section of the configuration states."""
    return Execution(
        micro_batch=section.micro_batch,
        micro_tokens=section.micro_tokens,
        checkpoint=section.checkpoint,
        stream_bottom=section.stream_bottom,
    )


def _changes(fleet: FleetConfig) -> tuple[ChangeConfig, ...]:
    """Return the listed changes and those of the trace file, in the order of rounds."""
    changes = [*fleet.changes]
    if fleet.memory_trace is not None:
        changes += _read_trace(Path(fleet.memory_trace))
    for change in changes:
        if change.client >= fleet.clients:
            raise HoflError(
                f"the memory trace changes client {change.client}, but fleet.clients is "
                f"{fleet.clients}: use clients 0 to {fleet.clients - 1}."
            )
    return tuple(sorted(changes, key=lambda change: (change.round, change.client)))


def _read_trace(path: Path) -> list[ChangeConfig]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise HoflError(f"cannot read fleet.memory_trace {path}: {reason}.") from None
    changes = []
    for line, row in enumerate(rows, start=2):
        try:
            budget = row["budget"].strip()
            parse_bytes(budget)
            changes.append(
                ChangeConfig(round=int(row["round"]), client=int(row["client"]), budget=budget)
            )
        except (KeyError, ValueError, AttributeError, TypeError, HoflError):
            raise HoflError(
                f"{path}, line {line}: expected a round from 1, a client from 0 and a budget such "
                "as 2GiB, under the header round,client,budget."
            ) from None
    return changes


def check_fleet(config: ExperimentConfig) -> None:
    """Refuse a fleet that cannot be drawn from."""
    fleet = config.fleet
    if fleet.cohort > fleet.clients:
        raise HoflError(
            f"fleet.cohort {fleet.cohort} exceeds fleet.clients {fleet.clients}: "
            "K distinct clients are drawn from N, so choose K <= N."
        )
    if config.server.min_answers > fleet.cohort:
        raise HoflError(
            f"server.min_answers {config.server.min_answers} exceeds fleet.cohort {fleet.cohort}: "
            "no round could count. Lower it, or raise fleet.cohort."
        )
