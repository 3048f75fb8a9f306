"""Predicted peaks of every kind of plan against real ones, and a process held to its budget."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from hofl.core.errors import HoflError
from hofl.core.optim import AdamW
from hofl.local.site import Execution
from hofl.memory.capability import MEASURED
from hofl.memory.hollow import hollow_model
from hofl.memory.live import resident_bytes
from hofl.memory.profile import allocated_by_steps
from hofl.memory.trace import trace
from hofl.memory.workload import Workload
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.quantised import FORMS
from hofl.rules import LocalRule
from hofl.variants import exact, forward_only, frozen
from support.models import BLOCKS, CONFIGS

RULE = LocalRule(optimizer=AdamW(lr=1e-3), local_steps=2)
RULES = {"hybrid": RULE, "exact": exact(RULE), "frozen": frozen(RULE), "zo": forward_only(RULE)}
CUTS = [("hybrid", BLOCKS - 1), ("exact", BLOCKS - 1), ("exact", BLOCKS)]
CUTS += [("frozen", BLOCKS - 1), ("zo", BLOCKS)]
"""A rule and where it is cut."""
LORA = Lora(rank=2, alpha=4)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("storage", "files"),
    [
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
        ("q8_0", "float32"),
        ("q4_1", "float32"),
    ],
)
def test_predicted_peaks_are_those_of_real_participations(
    storage: str, files: str, tmp_path: Path
) -> None:
    """Every rule, streamed or not, in segments or not, in every form of storage: within 3 %.

    The measure is the count of PyTorch's own allocator, which knows nothing of the planner.
    """
    form = storage if storage in FORMS else None
    stored = torch.float32 if form else getattr(torch, storage)
    in_files = getattr(torch, files)
    options = {"adapter": LORA, "storage_dtype": stored, "compute_dtype": torch.float32}
    AutoModelForCausalLM.from_config(CONFIGS["llama"]).to(in_files).save_pretrained(tmp_path)
    real = build_split(CONFIGS["llama"], str(tmp_path), form=form, **options)
    hollow = hollow_model(CONFIGS["llama"], form=form, file_dtype=in_files, **options)
    streams = (False,) if form else (False, True)
    for (name, boundary), stream, checkpoint in product(CUTS, streams, (0, 1, 2)):
        rule = RULES[name]
        execution = Execution(micro_batch=2, checkpoint=checkpoint, stream_bottom=stream)
        work = Workload.even(rule=rule, batch_size=4, seq_len=24)
        expected = trace(hollow, work, boundary, execution).peak_bytes
        real.keep(boundary if stream else 0)
        peak = resident_bytes(real.module) + allocated_by_steps(real, work, boundary, execution)
        assert peak == pytest.approx(expected, rel=0.03), (name, boundary, stream, checkpoint)


@pytest.mark.parametrize("form", FORMS)
def test_quantised_blocks_are_not_streamed(form: str, tmp_path: Path) -> None:
    """They stay in memory, so there is no peak of such a plan: it is refused in one line."""
    AutoModelForCausalLM.from_config(CONFIGS["llama"]).save_pretrained(tmp_path)
    with pytest.raises(HoflError, match="keeps frozen block weights in memory") as one:
        build_split(CONFIGS["llama"], str(tmp_path), adapter=LORA, form=form, stream=True)
    assert "\n" not in str(one.value)


LIMITED = """
import json, resource, sys
from hofl.core.process import status_bytes, tune_allocator
import torch
tune_allocator()
torch.set_num_threads(1)
from transformers import LlamaConfig
from hofl.core.optim import AdamW
from hofl.local.site import Execution
from hofl.memory.profile import participate
from hofl.memory.workload import Workload
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.quantised import FORMS
from hofl.rules import LocalRule
config, spec, boundary, room = json.loads(sys.argv[1])
rule = LocalRule.from_spec(spec)
before = status_bytes("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (before + room, resource.RLIM_INFINITY))
try:
    model = build_split(LlamaConfig(**config), None, adapter=Lora())
    work = Workload.even(rule=rule, batch_size=8, seq_len=128)
    participate(model, work, boundary, Execution(micro_batch=2))
    print("done")
except (MemoryError, RuntimeError) as error:
    print("out of memory" if "memory" in str(error) or isinstance(error, MemoryError) else error)
"""


@pytest.mark.parametrize(("name", "boundary"), [("exact", 4), ("zo", 6)])
def test_a_process_limited_to_peak_and_headroom_gets_through(name: str, boundary: int) -> None:
    """And one that is given much less does not: the limit is real."""
    size = {"num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 1024}
    size |= {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8192}
    rule, full = replace(RULES[name], local_steps=1), torch.float32
    config = LlamaConfig(**size)
    hollow = hollow_model(config, adapter=Lora(), storage_dtype=full, compute_dtype=full)
    work = Workload.even(rule=rule, batch_size=8, seq_len=128)
    cost = trace(hollow, work, boundary, Execution(micro_batch=2))

    def outcome(room: int) -> str:
        job = json.dumps([size, rule.spec(), boundary, room])
        words = [sys.executable, "-c", LIMITED, job]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert outcome(cost.peak_bytes + MEASURED.of(cost)) == "done"
    assert outcome(cost.peak_bytes // 2) == "out of memory"


def test_the_headroom_covers_every_measured_row() -> None:
    """Resident sets of real participations, each in a process of its own under a hard limit."""
    rows = json.loads((ROOT / "docs" / "results" / "headroom.json").read_text())["rows"]
    for column, least in (("rule", 4), ("storage", 4), ("model", 2), ("stream", 2)):
        assert len({row[column] for row in rows}) >= least, column
    for row in rows:
        room = MEASURED.of_working(row["working_bytes"])
        assert row["resident_bytes"] <= row["planned_bytes"] + room, row
