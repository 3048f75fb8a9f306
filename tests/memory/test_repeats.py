"""Calls that are alike are run once: costs must be those of running all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, SmolLM3Config

from hofl.core.optim import AdamW
from hofl.local.site import PLAIN, Execution
from hofl.memory.hollow import hollow_model
from hofl.memory.meter import Meter
from hofl.memory.trace import trace
from hofl.memory.workload import Cost, Workload
from hofl.models.adapters import Lora
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from hofl.variants import exact, forward_only, frozen

BLOCKS = 7
RULE = LocalRule(optimizer=AdamW(lr=1e-3), local_steps=2)
RULES = {"hybrid": RULE, "exact": exact(RULE), "frozen": frozen(RULE), "zo": forward_only(RULE)}
EXECUTIONS = (
    PLAIN,
    Execution(checkpoint=1),
    Execution(micro_batch=1, checkpoint=5),
    Execution(micro_batch=2, stream_bottom=True),
)
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": BLOCKS,
    "vocab_size": 97,
}
MODELS = {
    "llama": LlamaConfig(**SHAPE),
    # Every fourth block goes without rotary embedding: same weights, less memory.
    "smollm3": SmolLM3Config(**SHAPE, pad_token_id=0),
    # Windows of 8 tokens in most blocks.
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=8),
}


def hollow(name: str) -> SplitModel:
    return hollow_model(
        MODELS[name],
        adapter=Lora(rank=2),
        storage_dtype=torch.bfloat16,
        compute_dtype=torch.float32,
    )


@contextmanager
def everything_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "_repeated", lambda self, key, run, arguments: run())
        yield


def facts(cost: Cost) -> tuple[Any, ...]:
    return cost.peak_bytes, cost.items, round(cost.relative_compute, 9), cost.read_bytes


@pytest.mark.parametrize("name", MODELS)
def test_costs_are_those_of_running_every_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, for every rule, with and without checkpoints, parts and streaming."""
    model = hollow(name)
    for number, (kind, execution) in enumerate(product(RULES, EXECUTIONS)):
        boundary = BLOCKS if kind == "zo" else (0, 2, 5, BLOCKS)[number % 4]
        work = Workload.even(rule=RULES[kind], batch_size=3, seq_len=24)
        found = trace(model, work, boundary, execution)
        with everything_run(monkeypatch):
            expected = trace(model, work, boundary, execution)
        assert facts(found) == facts(expected), (kind, boundary, execution)


def test_a_long_graph_is_known_from_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least as few are run as without it, and the peak is the same at every length."""
    model, ran = hollow("llama"), []
    real = type(model.blocks[0]).forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(self)
        return real(self, *args, **kwargs)

    work = Workload.even(rule=RULES["exact"], batch_size=4, seq_len=32)
    monkeypatch.setattr(type(model.blocks[0]), "forward", counted)
    costs = [trace(model, work, boundary) for boundary in range(BLOCKS + 1)]
    assert len(ran) < 3 * BLOCKS, "of 2 L + b blocks for each of L + 1 boundaries"
    with everything_run(monkeypatch):
        assert [facts(c) for c in costs] == [
            facts(trace(model, work, boundary)) for boundary in range(BLOCKS + 1)
        ]
