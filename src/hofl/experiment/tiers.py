"""What every kind of device in a run will do: rule, memory, time and uplink, before it starts."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hofl.core.sizes import parse_bytes
from hofl.experiment.build import Simulation
from hofl.experiment.fleet import device_key, memory_plan_of, tiers_of
from hofl.experiment.model import adapter_of
from hofl.memory.capability import MEASURED
from hofl.memory.trace import trace
from hofl.memory.workload import Cost


@dataclass(frozen=True)
class TierFacts:
    """One kind of device.

    Args:
        name: what it can do, or its boundary where that was given.
        clients: how many there are.
        cost: its plan, predicted.
        budget: bytes that it has; None where boundaries were given.
        headroom: bytes to leave for the resident set.
        seconds: of a round's local steps, from one that was timed on this machine.
    """

    name: str
    clients: int
    cost: Cost
    budget: int | None
    headroom: int
    seconds: float


def tier_facts(experiment: Simulation) -> Iterator[TierFacts]:
    """Yield the kinds of devices at the start of a run, predicted and timed."""
    config, model = experiment.config, experiment.model.split
    present, devices = experiment.present(0), experiment.fleet.at(0)
    dealt = tiers_of(config.fleet)
    kinds: dict[str, list[int]] = {}
    for client in present.clients.tolist():
        cut = f"boundary {present.boundary(client)}"
        kinds.setdefault(device_key(dealt[client]) if dealt else cut, []).append(client)
    least = min(experiment.client.sizes)
    adapter = adapter_of(config)
    memory = memory_plan_of(config, experiment.method, model, experiment.train, adapter, least)
    for name, clients in kinds.items():
        plan = experiment.plan(experiment.start, clients[0], present)
        work = replace(memory.workload, rule=plan.rule)
        cost = trace(memory.model, work, plan.boundary, devices[clients[0]].execution)
        one = replace(plan, rule=replace(plan.rule, local_steps=1))
        began = time.perf_counter()
        experiment.client.upload(one)
        seconds = (time.perf_counter() - began) * plan.rule.local_steps
        budget = parse_bytes(dealt[clients[0]].memory) if dealt else None
        yield TierFacts(name, len(clients), cost, budget, MEASURED.of(cost), seconds)
