"""Counting live bytes, and what it says about boundaries and storage dtypes."""

import torch
from transformers import LlamaConfig

from hofl.algorithm import client_update
from hofl.core.directions import DirectionKey
from hofl.core.optim import AdamW
from hofl.local.step import LocalParts
from hofl.memory.live import LiveBytes, measure_peak, resident_bytes
from hofl.messages import RoundPlan
from hofl.models.adapters import Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import batch, tiny

KIB = 1024


def test_live_bytes_counts_what_is_alive_and_its_peak() -> None:
    """Sizes of 1 KiB blocks, followed by hand."""
    with LiveBytes() as counter:
        a = torch.zeros(256)  # 1 KiB
        b = a + 1  # 2 KiB
        view = b[:100]  # a view is no new memory
        assert counter.live == 2 * KIB
        del b
        assert counter.live == 2 * KIB, "the view keeps the storage"
        del view
        assert counter.live == KIB
        a.add_(1)
        assert counter.live == KIB
    assert counter.peak == 2 * KIB


def test_live_bytes_sees_saved_activations_and_the_backward_pass() -> None:
    weight = torch.randn(256, 256, requires_grad=True)
    with LiveBytes() as counter:
        x = torch.randn(256, 256)
        y = (x @ weight).sin().sum()
        saved = counter.live
        y.backward()
    assert saved >= 2 * 256 * KIB  # x and the product are kept for the backward pass
    assert counter.peak >= saved + 256 * KIB


def test_resident_bytes_counts_shared_weights_once() -> None:
    layer = torch.nn.Linear(8, 8, bias=False)
    both = torch.nn.ModuleList([layer, layer])
    assert resident_bytes(both) == 8 * 8 * 4


def peak(model: SplitModel, boundary: int, rows: int = 16, bottom: str = "zeroth-order") -> int:
    surrogate = "none" if bottom == "frozen" else "linear"
    rule = LocalRule(
        optimizer=AdamW(lr=1e-3), local_steps=2, bottom=bottom, surrogate=surrogate, q=2
    )
    plan = RoundPlan(
        run="m",
        round=0,
        client=0,
        boundary=boundary,
        key=DirectionKey(1, 0, 0),
        seed=1,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
    )
    data = [[batch(e, rows=rows, length=32)] for e in range(2)]
    with measure_peak(model.module, model.device) as result:
        client_update(model, plan, data, LocalParts.of(rule, boundary))
    return result.value


def test_a_higher_boundary_needs_less_memory() -> None:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=12,
        num_attention_heads=4,
        vocab_size=97,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = build_split(config, None, adapter=Lora(rank=2))
    resident = resident_bytes(model.module)
    peaks = [peak(model, boundary) - resident for boundary in (0, 3, 6, 9)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.5 * peaks[0]


def test_up_cast_copies_of_top_blocks_do_not_outlive_their_forward_pass() -> None:
    """At batch 1 weights dominate: a graph that kept FP32 copies would add all of them."""
    model = tiny("llama", storage_dtype=torch.bfloat16)
    block = sum(p.numel() * 4 for p in model.blocks[0].parameters() if not p.requires_grad)
    work = peak(model, 0, rows=1) - resident_bytes(model.module)
    plain = peak(tiny("llama"), 0, rows=1) - resident_bytes(tiny("llama").module)
    assert work - plain < 2 * block
