"""What every kind of device in a run will do: rule, memory, time and uplink, before it starts."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hofl.core.sizes import parse_bytes
from hofl.engines.client import LocalClient
from hofl.experiment.build import Simulation
from hofl.experiment.fleet import device_key, memory_plan_of, tiers_of
from hofl.experiment.model import adapter_of
from hofl.memory.capability import MEASURED
from hofl.memory.trace import trace
from hofl.memory.workload import Cost
from hofl.messages import RoundPlan


@dataclass(frozen=True)
class TierFacts:
    """One kind of device.

    Args:
        name: what it can do, or its boundary where that was given.
        clients: how many there are.
        cost: its plan, predicted.
        budget: bytes that it has; None where boundaries were given.
        headroom: bytes to leave for the resident set.
        seconds: of a participation, from short ones that were timed on this machine.
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
        first, further = step_seconds(experiment.client, plan, 1)
        seconds = first + (plan.rule.local_steps - 1) * further
        budget = parse_bytes(dealt[clients[0]].memory) if dealt else None
        yield TierFacts(name, len(clients), cost, budget, MEASURED.of(cost), seconds)


def step_seconds(client: LocalClient, plan: RoundPlan, timed: int) -> tuple[float, float]:
    """Time short participations; return seconds of the first local step and of a further one.

    The first does more: it checks the scalars at twice the radius, and the plan is unpacked before
    it.

    Args:
        client: computes answers.
        plan: of a whole participation.
        timed: how many further steps are timed, if the plan has as many.
    """

    def participate(steps: int) -> None:
        client.answer(replace(plan, rule=replace(plan.rule, local_steps=steps)).to_bytes())

    participate(1)  # the first one also measures memory, and warms up
    first = further = elapsed(partial(participate, 1))
    more = min(plan.rule.local_steps - 1, timed)
    if more:
        further = max(elapsed(partial(participate, 1 + more)) - first, 0.0) / more
    return first, further


def elapsed(work: Callable[[], Any]) -> float:
    """Return the seconds that work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
