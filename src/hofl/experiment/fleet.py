"""From a configuration to the devices of a run: boundaries given, or planned from budgets."""

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hofl.core.errors import HoflError
from hofl.core.sizes import parse_bytes
from hofl.data.encoded import EncodedSet
from hofl.experiment.config import (
    ChangeConfig,
    EngineConfig,
    ExperimentConfig,
    FleetConfig,
    PlannedConfig,
)
from hofl.experiment.tasks import fleet_seed
from hofl.local.site import Execution
from hofl.memory.device import FREE, Device, budget_bytes
from hofl.memory.hollow import hollow_model
from hofl.memory.plan import MemoryPlan
from hofl.memory.workload import heaviest_workload
from hofl.methods import Method
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import DTYPES
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.sampling.tiers import deal, deal_tiers


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
    """Deal boundaries by tier, or deal budgets by tier and plan boundaries for them."""
    fleet = config.fleet
    if not fleet.budgets:
        if fleet.memory_trace or fleet.changes:
            raise HoflError(
                "a memory trace changes budgets, and there are none: list them in fleet.budgets."
            )
        boundaries = deal_tiers(
            fleet.boundaries,
            fleet.clients,
            model.num_blocks,
            fleet_seed(config),
            "fleet.boundaries",
        )
        plan = FleetPlan(tuple(Device(b, execution_of(config.engine)) for b in boundaries))
        return BuiltFleet(plan, fleet.model_copy(update={"boundaries": boundaries}))
    if fleet.boundaries and not fleet.planned:
        raise HoflError("give fleet.boundaries or fleet.budgets, not both: budgets decide them.")
    # What is free now is recorded as an amount, so that a resumed run has the same devices.
    amounts = [str(budget_bytes(b, model.device)) if b == FREE else b for b in fleet.budgets]
    budgets = deal(amounts, fleet.clients, fleet_seed(config), "fleet.budgets")
    changes = _changes(fleet)
    facts: dict[str, Any] = {}
    planned = fleet.planned
    if not planned:
        wanted = dict.fromkeys([*budgets, *(change.budget for change in changes)])
        memory = memory_plan_of(config, method, model, train, adapter, smallest_shard)
        planned, facts = _planned(memory, list(wanted), fleet.strategy, config.model.name)
    devices = {row.budget: Device(row.boundary, execution_of(row)) for row in planned}
    plan = FleetPlan(
        tuple(devices[budget] for budget in budgets),
        tuple((change.round - 1, change.client, devices[change.budget]) for change in changes),
    )
    recorded: dict[str, Any] = {
        "boundaries": tuple(device.boundary for device in plan.start),
        "budgets": budgets,
        "memory_trace": None,
        "changes": changes,
        "planned": planned,
    }
    return BuiltFleet(plan, fleet.model_copy(update=recorded), facts)


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
    )
    work = heaviest_workload(train, method.local, config.task.batch_size, smallest_shard)
    return MemoryPlan(hollow, work, execution_of(config.engine), streaming=bool(model.on_disk))


def _planned(
    memory: MemoryPlan, budgets: list[str], strategy: str, name: str
) -> tuple[tuple[PlannedConfig, ...], dict[str, Any]]:
    """Return the choice for each budget, and the memory plan as plain values."""
    chosen = {budget: memory.fitting(parse_bytes(budget), strategy) for budget in budgets}
    planned = tuple(
        PlannedConfig(budget=budget, boundary=cost.boundary, **asdict(cost.execution))
        for budget, cost in chosen.items()
    )
    return planned, memory.facts(name, chosen, strategy)


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
