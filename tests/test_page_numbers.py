"""Numbers of pages: what the committed files say, and those what the code says today."""

import json
from dataclasses import replace
from pathlib import Path

import memory_tables
import options_table
import pytest
import sampling_numbers
import torch
from marked import renew, renewed
from measure_allocated import CASES, RULE
from plan_costs import OUT, execution_costs, model_plan, options, step_variants

from hofl.core.batch import ChooseWord
from hofl.local.site import Execution
from hofl.memory.hollow import hollow_model
from hofl.memory.trace import trace
from hofl.memory.workload import Workload
from hofl.models.adapters import Lora

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "data"


def test_the_pages_are_what_their_files_say() -> None:
    renew(memory_tables.pages(), "memory_tables.py", check=True)
    renew(options_table.pages(), "options_table.py", check=True)
    audit = json.loads((DATA / "audit.json").read_text())
    parts = {
        "coverage": sampling_numbers.coverage_part(),
        "audit": sampling_numbers.audit_part(audit),
    }
    renew({"docs/sampling.md": parts}, "sampling_numbers.py", check=True)


def test_a_typed_number_and_a_lost_place_are_reported() -> None:
    pages = memory_tables.pages()
    plans = json.loads(OUT.read_text())
    plans["budgets"][0]["peak"] += 2**30
    hybrid = plans["executions"]["24"]["plain"]
    changed = {"budgets": memory_tables.budgets_part(plans["budgets"], hybrid)}
    with pytest.raises(SystemExit, match=r"docs/memory.md is not what its data say"):
        renew({"docs/memory.md": changed}, "memory_tables.py", check=True)
    text = (ROOT / "docs" / "memory.md").read_text()
    assert renewed(text, pages["docs/memory.md"], "memory_tables.py") == text
    with pytest.raises(ValueError, match="each once"):
        renewed(text.replace("<!-- end of paper -->", ""), {"paper": ""}, "memory_tables.py")


def test_the_plans_on_file_are_those_of_the_planner() -> None:
    """One boundary of the paper's model, in every execution."""
    kept = json.loads(OUT.read_text())["executions"]["28"]
    assert execution_costs(model_plan(), 28) == kept


def test_the_predictions_beside_measurements_are_those_of_the_planner() -> None:
    rows = json.loads((DATA / "allocated.json").read_text())["rows"]
    dtypes = {"storage_dtype": torch.float32, "compute_dtype": torch.float32}
    for case in CASES[1:]:
        model = hollow_model(case.config, adapter=Lora(), **dtypes)
        rule = replace(RULE, local_steps=case.local_steps)
        for row in (row for row in rows if row["model"] == case.name and row["length"] == 32):
            work = Workload.even(rule=rule, batch_size=case.batch_size, seq_len=row["length"])
            how = Execution(checkpoint=row["segments"])
            found = [trace(model, work, b, how).peak_bytes for b in row["boundaries"]]
            assert found == row["predicted"]


def test_micro_batches_of_the_benchmark_are_its_batch_in_parts() -> None:
    batch = step_variants.make_batch(100)
    parts = options.parts_of(batch, 4)
    assert len(parts) == step_variants.BATCH // 4
    assert torch.equal(torch.cat([part.texts.tokens for part in parts]), batch.texts.tokens)
    read = torch.cat([part.texts.tokens[part.slots] for part in parts])
    assert torch.equal(read, batch.texts.tokens[batch.slots])
    goals = [part.goal for part in parts if isinstance(part.goal, ChooseWord)]
    assert isinstance(batch.goal, ChooseWord)
    assert torch.equal(torch.cat([goal.targets for goal in goals]), batch.goal.targets)
