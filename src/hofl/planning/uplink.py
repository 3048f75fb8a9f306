"""The size of an upload before there is one: a message of zeros, serialised."""

from dataclasses import replace

import torch

from hofl.layout import Layout
from hofl.messages import ClientMetrics, LocalRule, RoundPlan, Upload
from hofl.packing import pack

# Figures of full width: a header with them is as long as that of a real upload.
_METRICS = ClientMetrics(loss=4 / 3, examples=80, peak_bytes=10**9)
_CHECKED = replace(_METRICS, checks=1, signal=1e-2 / 3, noise=1e-7 / 3)
_HASH = "0" * 64


def uplink_bytes(layout: Layout, rule: LocalRule, boundary: int) -> int:
    """Length of a client's answer at a boundary, give or take a few digits in its header."""
    plan = RoundPlan(
        run="plan-0123456789ab",
        round=100,
        client=10,
        boundary=boundary,
        seed=0,
        layout=layout.digest,
        rule=rule,
        w=torch.zeros(0),
        verify=True,
    )
    shape = plan.scalars_shape(layout)
    difference = torch.zeros(layout.size - plan.dense_start(layout))
    upload = Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=boundary,
        layout=plan.layout,
        plan=_HASH,
        scalars=torch.zeros(shape),
        difference=pack(difference, rule.uplink_bits, plan.rounding()),
        metrics=_CHECKED if shape[1] else _METRICS,
        bottom_hash=_HASH if shape[1] else "",
    )
    return len(upload.to_bytes())
