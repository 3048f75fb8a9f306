"""Memory ahead of time against what real runs are counted to need."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hofl.algorithm import client_update
from hofl.local.rules import resolve
from hofl.memory import LiveBytes, measure_peak
from hofl.messages import LocalRule, RoundPlan, Upload
from hofl.methods import method
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.split import SplitModel
from hofl.optim import SGD, AdamW
from hofl.planning.boundaries import all_boundaries
from hofl.planning.hollow import hollow_model
from hofl.planning.trace import trace
from hofl.planning.workload import Workload
from models import BLOCKS, CONFIGS, batch, tiny

LORA = Lora(rank=2, alpha=4)
HYBRID = LocalRule(optimizer=AdamW(lr=1e-3))
ROWS, LENGTH = 6, 24


def hollow(family: str, adapter: Lora | FullBlocks = LORA, dtype: Any = torch.float32) -> SplitModel:
    return hollow_model(
        CONFIGS[family], adapter=adapter, storage_dtype=dtype, compute_dtype=torch.float32
    )


def measured(model: SplitModel, rule: LocalRule, boundary: int) -> tuple[int, Upload]:
    """Peak and upload of a real participation."""
    plan = RoundPlan(
        run="plan-0123456789ab",
        round=7,
        client=3,
        boundary=boundary,
        seed=1,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
        verify=True,
    )
    steps = ([batch(e, rows=ROWS, length=LENGTH)] for e in range(rule.local_steps))
    with measure_peak(model.module, model.device) as peak:
        upload = client_update(model, plan, steps, *resolve(rule, boundary))
    return peak.value, upload


def workload(rule: LocalRule) -> Workload:
    return Workload(rule=rule, batch_size=ROWS, seq_len=LENGTH)


@pytest.mark.parametrize("family", CONFIGS)
def test_predicted_peak_is_that_of_a_real_participation_of_five_steps(family: str) -> None:
    model, empty = tiny(family), hollow(family)
    for boundary in (0, 1, 3, BLOCKS):
        peak, _ = measured(model, HYBRID, boundary)
        print(family, boundary, peak, trace(empty, workload(HYBRID), boundary).peak_bytes)
