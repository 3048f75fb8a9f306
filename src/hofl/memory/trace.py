"""Predict what a participation needs by running it on a model without data.

What runs is the client's own code, :func:`hofl.algorithm.client_update`, not a formula for it. One
local step is enough: optimizer state is made before the first step, and nothing else outlives one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hofl.algorithm import client_update
from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.core.layout import Layout
from hofl.core.packing import Packed, lengths
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.memory.hollow import META, without_data
from hofl.memory.live import LiveBytes, resident_bytes
from hofl.memory.meter import Meter
from hofl.memory.workload import ITEMS, Cost, Workload
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from hofl.server.state import keeper_of

WEIGHTS, STATE, _, _, TRANSIENT = ITEMS

# Numbers of full width: a header with them is as long as that of a real upload.
_METRICS = ClientMetrics(loss=4 / 3, examples=80, peak_bytes=10**9)
_CHECKED = replace(_METRICS, checks=1, signal=1e-2 / 3, noise=1e-7 / 3)
_HASH = "0" * 64


def trace(
    model: SplitModel, workload: Workload, boundary: int, execution: Execution = PLAIN
) -> Cost:
    """Return the cost of a participation at a boundary; ``model`` is a hollow one."""
    rule = workload.rule
    # The upload is packed from a copy on the CPU, which is not counted here.
    traced = replace(rule, local_steps=1, uplink_bits=32)
    plan = placeholder_plan(model, traced, boundary)
    parts = LocalParts.of(rule, boundary)
    part, others = workload.heaviest_part(execution), workload.parts(execution)[1:]
    counter = LiveBytes(META)
    meter = Meter(counter, model)
    model.keep(boundary if execution.stream_bottom else 0)
    read = meter.read_bytes()
    with without_data(), counter, meter.watching(), counter.making(STATE):
        # One part is traced, beside the tokens of the other parts and the gradient so far.
        waiting = [other.batch() for other in others]
        summed = torch.empty(_dense(plan, model) if others else 0, device=META)
        steps = _one_step(part.batch(), counter)
        watched = replace(parts, bottom=meter.without_recheck(parts.bottom))
        client_update(model, plan, steps, watched, execution)
        del waiting, summed
    items = {kind: counter.items.get(kind, 0) for kind in ITEMS}
    adapter = model.w.numel() * model.w.element_size()
    items[WEIGHTS] += resident_bytes(model.module) - adapter
    items[STATE] += adapter
    return Cost(
        boundary=boundary,
        execution=execution,
        rule=rule,
        peak_bytes=sum(items.values()),
        items=items,
        **what_is_trained(model.layout, rule, boundary),
        relative_compute=meter.tokens / part.tokens / (2 * model.num_blocks),
        parts=len(others) + 1,
        # The parts are alike but for their tokens, and each reads the same weights.
        read_bytes=(len(others) + 1) * (meter.read_bytes() - read),
    )


def what_is_trained(layout: Layout, rule: LocalRule, boundary: int) -> dict[str, Any]:
    """Return how much is trained in which way at a boundary, and what is sent of it."""
    cut, traits = layout.cut(boundary), rule.traits
    return {
        "zo_params": cut if traits.sends_scalars else 0,
        "fo_params": layout.size - cut,
        "exact_params": layout.size if traits.exact else layout.size - cut,
        "uplink_bytes": uplink_bytes(layout, rule, boundary),
    }


def placeholder_plan(model: SplitModel, rule: LocalRule, boundary: int) -> RoundPlan:
    """Return a plan for tracing and profiling, from no server."""
    return RoundPlan(
        run="plan",
        round=0,
        client=0,
        boundary=boundary,
        key=DirectionKey(0, 0, 0),
        seed=0,
        layout=model.layout.digest,
        rule=rule,
        w=torch.zeros(model.layout.size),
        vectors=keeper_of(rule.directions, model.layout).start(),
    )


def _dense(plan: RoundPlan, model: SplitModel) -> int:
    """Return the length of the gradient summed over parts: the top's, or all of it (recompute)."""
    return model.layout.size - plan.dense_start(model.layout)


def _one_step(part: Batch, counter: LiveBytes) -> Iterator[list[Batch]]:
    """Yield a step of one part; from its start on, new tensors are no longer state."""
    with counter.making(TRANSIENT):
        yield [part]


def uplink_bytes(layout: Layout, rule: LocalRule, boundary: int) -> int:
    """Return the length of a client's upload at a boundary, from one of zeros, serialised.

    A real upload may differ by a few digits in its header.
    """
    plan = RoundPlan(
        run="plan-0123456789ab",
        round=100,
        client=10,
        boundary=boundary,
        key=DirectionKey(0, 0, 0),
        seed=0,
        layout=layout.digest,
        rule=rule,
        w=torch.zeros(0),
        verify=True,
    )
    shape, size = plan.scalars_shape(layout), layout.size - plan.dense_start(layout)
    upload = Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=boundary,
        layout=plan.layout,
        plan=_HASH,
        scalars=torch.zeros(shape),
        difference=_zeros(size, rule.uplink_bits),
        metrics=_CHECKED if shape[1] else _METRICS,
        bottom_hash=_HASH if shape[1] else "",
    )
    return len(upload.to_bytes())


def _zeros(size: int, bits: int) -> Tensor | Packed:
    """Return as many bytes as a difference of ``size`` values takes."""
    if bits == 32:
        return torch.zeros(size)
    codes, scales = lengths(size, bits)
    return Packed(torch.zeros(codes, dtype=torch.uint8), torch.zeros(scales))
