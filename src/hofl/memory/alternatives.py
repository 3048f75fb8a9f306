"""What a device could run instead: the paper's hybrid order, exact, streamed, frozen, pure ZO."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hofl.local.site import Execution
from hofl.memory.capability import Capability
from hofl.memory.plan import memory_plan
from hofl.memory.planner import Planner
from hofl.memory.workload import Cost
from hofl.methods import method
from hofl.models.quantised import FORMS
from hofl.rules import LocalRule
from hofl.variants import exact, forward_only, frozen


@dataclass(frozen=True)
class Alternative:
    """A way to take part, by name.

    Args:
        name: for people.
        cost: what it takes.
        below: parameters below its boundary.
        chosen: whether it is the planner's choice.
        fits: whether the device can run it; None without a device.
    """

    name: str
    cost: Cost
    below: int
    chosen: bool
    fits: bool | None


def planner_for(name: str, method_name: str, changes: Mapping[str, Any], **work: Any) -> Planner:
    """Return the planner of a model, from its configuration alone; ``work`` is memory_plan's."""
    chosen = method(method_name, **changes)
    stored = work["storage_dtype"]
    others = [form for form in FORMS if form != stored]
    forms = {
        form: partial(memory_plan, name, chosen.local, **{**work, "storage_dtype": form})
        for form in others
    }
    return Planner(memory_plan(name, chosen.local, **work), chosen, forms=forms)


def alternatives(
    planner: Planner, device: Capability | None, chosen: Cost | None
) -> list[Alternative]:
    """Return the planner's choice and five others, each as lean as its kind allows at a boundary.

    Hybrid order and the frozen bottom are cut at three quarters of the model, as in the paper's
    smallest tier, and run their plain step.
    """
    memory, rule = planner.memory, planner.method.local
    if not rule.traits.sends_scalars:  # what would the paper's directions cost in its place?
        paper = method("hofl").local
        rule = replace(rule, bottom=paper.bottom, surrogate=paper.surrogate, q=rule.q or paper.q)
    blocks = memory.model.num_blocks
    single = Execution(micro_batch=1 if memory.workload.batch_size > 1 else 0)
    at = 3 * blocks // 4
    kinds: list[tuple[str, LocalRule, int, Execution]] = [
        ("hybrid order (the paper)", rule, at, Execution()),
        ("exact", exact(rule), 0, replace(single, checkpoint=1)),
        ("exact, streamed", exact(rule), blocks, replace(single, stream_bottom=True)),
        ("frozen bottom", frozen(rule), at, Execution()),
        ("pure zeroth order", forward_only(rule), blocks, Execution()),
    ]
    if not memory.streaming:
        del kinds[2]
    rows = [] if chosen is None else [("plan", chosen)]
    for name, of_kind, boundary, execution in kinds:
        rows.append((name, memory.traced(of_kind, boundary, execution)))
    return [
        Alternative(
            name,
            cost,
            memory.model.layout.cut(cost.boundary),
            cost is chosen,
            None if device is None else _possible(planner, cost, device),
        )
        for name, cost in rows
    ]


def _possible(planner: Planner, cost: Cost, device: Capability) -> bool:
    backward = cost.boundary < planner.memory.model.num_blocks or cost.rule.traits.needs_backward
    if backward and not device.backward:
        return False
    return not any(planner.effort.exceeded(cost, device, planner.headroom))
