"""What a participation will need, by running it on a model without data.

What runs is the client's own code, :func:`hofl.algorithm.client_update`, not a formula for it. One
local step is enough: optimizer state is made before the first step, and nothing else outlives one.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from hofl.algorithm import client_update
from hofl.batch import Batch
from hofl.local.execution import PLAIN, Execution
from hofl.local.rules import resolve
from hofl.memory import LiveBytes, resident_bytes
from hofl.messages import LocalRule, RoundPlan
from hofl.models.split import SplitModel
from hofl.planning.hollow import META, without_data
from hofl.planning.meter import STATE, TRANSIENT, WEIGHTS, Meter
from hofl.planning.uplink import uplink_bytes
from hofl.planning.workload import ITEMS, Cost, Workload


def trace(
    model: SplitModel, workload: Workload, boundary: int, execution: Execution = PLAIN
) -> Cost:
    """The cost of a participation at a boundary; ``model`` is a hollow one."""
    rule = workload.rule
    plan = round_plan(model, replace(rule, local_steps=1), boundary)
    bottom, surrogate = resolve(rule, boundary)
    part = min(execution.micro_batch or workload.batch_size, workload.batch_size)
    model.keep(boundary if execution.stream_bottom else 0)
    with without_data(), LiveBytes(META) as counter:
        meter = Meter(counter, part * workload.rows_per_example)
        with meter.watching(model), counter.making(STATE):
            # One part is traced; it finds the other parts' tokens, and the gradient so far.
            left = workload.batch_size - part
            others = workload.batch(left)
            summed = torch.empty(_dense(plan, model) if left else 0, device=META)
            steps = _one_step(workload.batch(part), counter)
            client_update(model, plan, steps, meter.checked(bottom), surrogate, execution)
            del others, summed
    items = {kind: counter.items.get(kind, 0) for kind in ITEMS}
    adapter = model.w.numel() * model.w.element_size()
    items[WEIGHTS] += resident_bytes(model.module) - adapter
    items[STATE] += adapter
    cut = model.layout.cut(boundary)
    return Cost(
        boundary=boundary,
        execution=execution,
        bottom=rule.bottom,
        peak_bytes=sum(items.values()),
        items=items,
        zo_params=cut,
        fo_params=model.layout.size - cut,
        uplink_bytes=uplink_bytes(model.layout, rule, boundary),
        relative_compute=meter.passes / (2 * model.num_blocks),
    )


def round_plan(model: SplitModel, rule: LocalRule, boundary: int) -> RoundPlan:
    """A plan from nobody."""
    return RoundPlan(
        run="plan",
        round=0,
        client=0,
        boundary=boundary,
        seed=0,
        layout=model.layout.digest,
        rule=rule,
        w=torch.zeros(model.layout.size),
    )


def _dense(plan: RoundPlan, model: SplitModel) -> int:
    """Length of the gradient that adds up over parts: the top's, or all after recompute."""
    return model.layout.size - plan.dense_start(model.layout)


def _one_step(part: Batch, counter: LiveBytes) -> Iterator[list[Batch]]:
    """A step of one part; from its start on, what is made is no longer state."""
    with counter.making(TRANSIENT):
        yield [part]
