"""Measures of a run: block passes against a traced step, cohort memory against a sum by hand."""

from dataclasses import replace

import pytest
import torch

from hofl.experiment.records import RoundRecord
from hofl.local.estimators import FiniteDifference
from hofl.memory.hollow import hollow_model
from hofl.memory.trace import trace
from hofl.memory.workload import Workload
from hofl.methods import METHODS
from hofl.models.adapters import Lora
from hofl.reporting.measures import MEASURES, block_passes
from hofl.rules import ESTIMATORS, SURROGATES, EstimatorTraits
from support.cells import cell
from support.models import CONFIGS
from support.registries import owns_parameters

RULES = {name: METHODS[name].local for name in METHODS}
RULES["from outside"] = replace(RULES["mezo"], estimator="one-sided", surrogate="whole", q=3)


@pytest.fixture(autouse=True)
def parts_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator of two passes on one side, and the whole loss under another name."""
    traits = EstimatorTraits(
        make=lambda mu: FiniteDifference(mu, (1.0, 2.0), (2.0, -0.5)), passes=2
    )
    monkeypatch.setitem(ESTIMATORS, "one-sided", traits)
    monkeypatch.setitem(SURROGATES, "whole", replace(SURROGATES["end-to-end"]))


@pytest.mark.parametrize(
    # A surrogate with parameters of its own needs a model that is built with them.
    "name",
    [n for n in RULES if n not in METHODS or not owns_parameters(RULES[n].surrogate)],
)
def test_block_passes_are_those_of_a_traced_step(name: str) -> None:
    """The trace runs the client's own code on tensors without data, and counts."""
    model = hollow_model(
        CONFIGS["llama"],
        adapter=Lora(rank=2, alpha=4),
        storage_dtype=torch.float32,
        compute_dtype=torch.float32,
    )
    rule, blocks = RULES[name], model.num_blocks
    for boundary in (0, 1, blocks):
        cost = trace(model, Workload(rule=rule, examples=((9,), (7,))), boundary)
        counted = cost.relative_compute * 2 * blocks
        assert block_passes(rule, boundary, blocks) == pytest.approx(counted)


def test_parts_that_are_not_known_have_no_count() -> None:
    rule = METHODS["hofl"].local
    assert block_passes(replace(rule, estimator="forward-mode"), 1, 4) is None
    assert block_passes(replace(rule, bottom="mine"), 1, 4) is None


def test_cohort_memory_and_compute_add_up_over_those_who_answered() -> None:
    """Clients 0 and 1 cut at 1, clients 2 and 3 at 3, L = 4; q = 2: 2L + b passes."""
    records = [
        RoundRecord(round=0, scores={"accuracy": 0.2}),
        RoundRecord(round=1, answered=[0, 2], examples=20),
        RoundRecord(round=2, answered=[0, 1], examples=20, raised={1: 3}),
    ]
    facts = {"peak_by_boundary": {1: 100, 3: 60}, "blocks": 4}
    found = cell("hofl", 5, 0.5, records=records, **facts)
    assert MEASURES["cohort"].of(found) == ((100 + 60) + (100 + 60)) / 2
    assert MEASURES["compute"].of(found) == 10 * (9 + 11) + 10 * (9 + 11)
    everywhere = {"peak_by_boundary": {0: 200}, "blocks": 4}
    fedavg = cell("fedavg", 5, 0.5, records=records[:2], **everywhere)
    assert MEASURES["cohort"].of(fedavg) == 400
    assert MEASURES["compute"].of(fedavg) == 20 * 8
    assert MEASURES["compute"].of(cell("fedavg", 5, 0.5, records=records[:2])) is None
