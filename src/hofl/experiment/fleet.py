"""From a configuration to the devices of a run: boundaries as given, or planned from budgets."""

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hofl.data.encoding import EncodedSet
from hofl.errors import HoflError
from hofl.experiment.config import ChangeConfig, ExperimentConfig, FleetConfig, PlannedConfig
from hofl.experiment.tasks import fleet_seed
from hofl.local.execution import Execution
from hofl.methods import Method
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import DTYPES
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.planning.available import FREE, budget_bytes
from hofl.planning.fleet import Device, FleetPlan, heaviest_workload
from hofl.planning.hollow import hollow_model
from hofl.planning.plan import MemoryPlan
from hofl.planning.sizes import parse_bytes
from hofl.sampling.tiers import deal, deal_tiers


@dataclass(frozen=True)
class BuiltFleet:
    """The devices, the configuration that gives them again, and the plan made on the way.

    Args:
        plan: the devices of every round.
        config: ``fleet`` with every choice written down.
        facts: the memory plan, as plain values; empty when nothing was planned.
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
) -> BuiltFleet:
    """Boundaries by tier, or planned for the budgets by tier."""
    fleet = config.fleet
    if not fleet.budgets:
        if fleet.memory_trace or fleet.changes:
            raise HoflError("a memory trace changes budgets: list them in fleet.budgets.")
        own = deal_tiers(
            fleet.boundaries,
            fleet.clients,
            model.num_blocks,
            fleet_seed(config),
            "fleet.boundaries",
        )
        plan = FleetPlan(tuple(Device(b, execution_of(config)) for b in own))
        return BuiltFleet(plan, fleet.model_copy(update={"boundaries": own}))
    if fleet.boundaries and not fleet.planned:
        raise HoflError("give fleet.boundaries or fleet.budgets, not both: budgets decide them.")
    # What is free now is written down as an amount: a resumed run has the same devices.
    amounts = [str(budget_bytes(b, model.device)) if b == FREE else b for b in fleet.budgets]
    budgets = deal(amounts, fleet.clients, fleet_seed(config), "fleet.budgets")
    changes = _changes(fleet)
    facts: dict[str, Any] = {}
    planned = fleet.planned
    if not planned:
        wanted = dict.fromkeys([*budgets, *(change.budget for change in changes)])
        memory = memory_plan_of(config, method, model, train, adapter)
        planned, facts = _planned(memory, list(wanted), fleet.strategy, config.model.name)
    devices = {row.budget: _device(row) for row in planned}
    plan = FleetPlan(
        tuple(devices[budget] for budget in budgets),
        tuple((change.round - 1, change.client, devices[change.budget]) for change in changes),
    )
    written: dict[str, Any] = {
        "boundaries": tuple(device.boundary for device in plan.start),
        "budgets": budgets,
        "memory_trace": None,
        "changes": changes,
        "planned": planned,
    }
    return BuiltFleet(plan, fleet.model_copy(update=written), facts)


def memory_plan_of(
    config: ExperimentConfig,
    method: Method,
    model: SplitModel,
    train: EncodedSet,
    adapter: Lora | FullBlocks,
) -> MemoryPlan:
    """Costs of this run's heaviest step on a device, at every boundary."""
    stored = config.model.storage_dtype
    hollow = hollow_model(
        model.config,
        adapter=adapter,
        storage_dtype=DTYPES.get(stored, torch.float32),
        compute_dtype=model.compute_dtype,
        form=stored if stored in FORMS else None,
    )
    most = config.task.max_length
    assert most is not None, "settled with the task"
    work = heaviest_workload(train, method.local, config.task.batch_size, most)
    return MemoryPlan(hollow, work, execution_of(config), streaming=bool(model.on_disk))


def _planned(
    memory: MemoryPlan, budgets: list[str], strategy: str, name: str
) -> tuple[tuple[PlannedConfig, ...], dict[str, Any]]:
    """The planner's choice for each budget, and the whole plan as plain values."""
    chosen = {budget: memory.fitting(parse_bytes(budget), strategy) for budget in budgets}
    planned = tuple(
        PlannedConfig(budget=budget, boundary=cost.boundary, **asdict(cost.execution))
        for budget, cost in chosen.items()
    )
    return planned, memory.facts(name, chosen, strategy)


def execution_of(config: ExperimentConfig) -> Execution:
    """How the configuration wants steps to be run."""
    engine = config.engine
    return Execution(engine.micro_batch, engine.checkpoint, engine.stream_bottom)


def _device(row: PlannedConfig) -> Device:
    return Device(row.boundary, Execution(row.micro_batch, row.checkpoint, row.stream_bottom))


def _changes(fleet: FleetConfig) -> tuple[ChangeConfig, ...]:
    """Changes as written, and those of the trace file, in the order in which they happen."""
    found = [*fleet.changes]
    if fleet.memory_trace is not None:
        found += _read_trace(Path(fleet.memory_trace))
    for change in found:
        if change.client >= fleet.clients:
            raise HoflError(
                f"the memory trace changes client {change.client}, but fleet.clients is "
                f"{fleet.clients}: clients are counted from 0."
            )
    return tuple(sorted(found, key=lambda change: (change.round, change.client)))


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
            "K distinct clients are drawn from N, so K <= N."
        )
    if config.server.min_answers > fleet.cohort:
        raise HoflError(
            f"server.min_answers {config.server.min_answers} exceeds fleet.cohort {fleet.cohort}: "
            "no round could ever count."
        )
