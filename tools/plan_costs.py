"""Plan what docs/memory.md shows: ``python tools/plan_costs.py`` writes results/data/plans.json.

Qwen2.5-1.5B at the paper's batch, and the steps that ``benchmarks/options.py`` times, from the
models' configurations: nothing is loaded or run. ``tools/memory_tables.py`` turns the file into
tables. Half a minute of processor time.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hofl
from hofl.local.site import Execution
from hofl.memory.capability import MEASURED
from hofl.memory.live import resident_bytes
from hofl.memory.plan import MemoryPlan, memory_plan
from hofl.memory.workload import Cost
from hofl.methods import METHODS
from hofl.models.loading import read_model_config
from hofl.paper.computed import BATCH, LENGTH
from hofl.paper.settings import MODELS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import options  # noqa: E402
import step_variants  # noqa: E402

OUT = ROOT / "docs" / "results" / "data" / "plans.json"
FOLDER = MODELS["Qwen2.5-1.5B"].architecture
BOUNDARIES = (0, 24, 28)
EXECUTIONS = {
    "plain": Execution(),
    "checkpoints at every block": Execution(checkpoint=1),
    "micro-batches of 1": Execution(micro_batch=1),
    "both": Execution(checkpoint=1, micro_batch=1),
    "both, streamed bottom": Execution(checkpoint=1, micro_batch=1, stream_bottom=True),
}
BUDGETS = (("8GiB", True), ("4GiB", True), ("1.2GiB", True), ("1.2GiB", False))
"""Memory of a device, and whether it can run a block backward."""
Facts = dict[str, Any]


def facts_of(cost: Cost) -> Facts:
    """A plan in a few numbers."""
    return {
        "what": cost.describe(),
        "peak": cost.peak_bytes,
        "headroom": MEASURED.of(cost),
        "compute": round(cost.relative_compute, 6),
        "uplink": cost.uplink_bytes,
    }


def model_plan() -> MemoryPlan:
    """The paper's step on its model."""
    return memory_plan(FOLDER, METHODS["hofl"].local, batch_size=BATCH, seq_len=LENGTH)


def execution_costs(memory: MemoryPlan, boundary: int) -> dict[str, Facts]:
    """The step at one boundary in every execution."""
    rule = memory.workload.rule
    return {
        name: facts_of(memory.traced(rule, boundary, execution))
        for name, execution in EXECUTIONS.items()
    }


def chosen_for(budget: str, backward: bool) -> Facts:
    """What a device with this budget should run."""
    planned = hofl.plan(FOLDER, budget, batch_size=BATCH, seq_len=LENGTH, backward=backward)
    assert planned.chosen is not None
    return {"budget": budget, "backward": backward, **facts_of(planned.chosen)}


def option_costs() -> Iterator[Facts]:
    """The rows of the benchmark of options, planned."""
    sizes = {"batch_size": step_variants.BATCH, "seq_len": step_variants.LENGTH}
    blocks = read_model_config(options.MODEL).num_hidden_layers
    plans: dict[str, MemoryPlan] = {}
    for name, variant in options.variants(blocks).items():
        form = variant.storage
        if form not in plans:
            dtypes = {"storage_dtype": form, "compute_dtype": "float32"}
            plans[form] = memory_plan(options.MODEL, variant.rule, **sizes, **dtypes)
        rule = replace(variant.rule, local_steps=1)
        cost = plans[form].traced(rule, variant.boundary, variant.execution)
        weights = resident_bytes(plans[form].model.module)
        passes = round(2 * blocks * cost.relative_compute)
        yield {"name": name, **facts_of(cost), "weights": weights, "passes": passes}


def main() -> None:
    """Plan everything anew."""
    memory = model_plan()
    facts = {
        "command": "python tools/plan_costs.py",
        "executions": {str(b): execution_costs(memory, b) for b in BOUNDARIES},
        "budgets": [chosen_for(*device) for device in BUDGETS],
        "options": list(option_costs()),
    }
    OUT.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
