"""Predicted peaks beside those of PyTorch's allocator: ``python tools/measure_allocated.py``.

Writes docs/results/data/allocated.json, which ``tools/memory_tables.py`` turns into a table. Whole
participations of hybrid order run one after another in this process, as ``hofl profile`` runs each
in a process of its own. A minute and a half of processor time.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import OPTConfig, Qwen2Config

from hofl.core.optim import AdamW
from hofl.local.site import Execution
from hofl.memory.hollow import hollow_model
from hofl.memory.live import resident_bytes
from hofl.memory.profile import allocated_by_steps, participate
from hofl.memory.trace import trace
from hofl.memory.workload import Workload
from hofl.models.adapters import Lora
from hofl.models.loading import build_split, load_model, read_model_config
from hofl.models.split import SplitModel
from hofl.rules import LocalRule

OUT = Path(__file__).parents[1] / "docs" / "results" / "data" / "allocated.json"
REAL = "smollm2-135m-instruct"
RULE = LocalRule(optimizer=AdamW(lr=1e-3))
LENGTHS, SEGMENTS = (32, 128), (0, 1)
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 8192,
    "max_position_embeddings": 256,
}


@dataclass(frozen=True)
class Case:
    """A model, and how it is used.

    Args:
        name: as the page names it.
        config: of random weights, or None for the real model.
        boundaries: where it is cut.
        batch_size: B.
        local_steps: E.
    """

    name: str
    config: Any
    boundaries: tuple[int, ...]
    batch_size: int
    local_steps: int


CASES = (
    Case("SmolLM2-135M", None, (0, 8, 15, 22), 4, 1),
    Case(
        "OPT-shaped", OPTConfig(**SMALL, ffn_dim=1024, word_embed_proj_dim=256), (0, 2, 4, 6), 8, 2
    ),
    Case(
        "Qwen2-shaped",
        Qwen2Config(**SMALL, intermediate_size=1024, num_key_value_heads=8),
        (0, 2, 4, 6),
        8,
        2,
    ),
)


def models(case: Case) -> tuple[SplitModel, SplitModel]:
    """The model without bytes, and with them."""
    config = case.config or read_model_config(REAL)
    planned = hollow_model(
        config, adapter=Lora(), storage_dtype=torch.float32, compute_dtype=torch.float32
    )
    if case.config is None:
        return planned, load_model(REAL, device="cpu").split
    return planned, build_split(config, None, adapter=Lora())


def measured(case: Case) -> list[dict[str, Any]]:
    """A row for every length and execution: what was predicted and allocated by boundary."""
    hollow, model = models(case)
    rule = replace(RULE, local_steps=case.local_steps)
    rows = []
    for length in LENGTHS:
        work = Workload.even(rule=rule, batch_size=case.batch_size, seq_len=length)
        for segments in SEGMENTS:
            how = Execution(checkpoint=segments)
            row: dict[str, Any] = {"model": case.name, "length": length, "segments": segments}
            row["boundaries"] = case.boundaries
            row["predicted"] = [trace(hollow, work, b, how).peak_bytes for b in case.boundaries]
            row["allocated"] = [allocated(model, work, b, how) for b in case.boundaries]
            rows.append(row)
            print(row, flush=True)
    return rows


def allocated(model: SplitModel, work: Workload, boundary: int, how: Execution) -> int:
    """The peak of a participation by PyTorch's allocator, the model included."""
    start = model.w.clone()
    participate(model, Workload.even(rule=work.rule, batch_size=1, seq_len=2), boundary, how)
    peak = resident_bytes(model.module) + allocated_by_steps(model, work, boundary, how)
    model.load(start)
    return peak


def main() -> None:
    """Measure all rows."""
    torch.set_num_threads(1)
    rows = [row for case in CASES for row in measured(case)]
    facts = {"command": "python tools/measure_allocated.py", "torch": torch.__version__}
    OUT.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
