"""A step in less memory is the same step: segments and micro-batches against autograd."""

import pytest
import torch
from transformers import LlamaConfig

from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.core.optim import SGD
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.memory.live import LiveBytes
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import BLOCKS, CONFIGS, batch, parts, tiny
from support.steps import autograd_gradient, site_at

SEGMENTS = (1, 2, 3, 99)
HYBRID = LocalRule(optimizer=SGD(lr=0.1), q=2)
EXACT = LocalRule(optimizer=SGD(lr=0.1), q=0, bottom="recompute")


def step(
    model: SplitModel,
    boundary: int,
    data: Batch,
    execution: Execution = PLAIN,
    rule: LocalRule = HYBRID,
) -> StepGradients:
    """Both segments' gradients at local step 1, where there is no error check."""
    site = site_at(model, boundary, DirectionKey(1, 0, 0), 1, execution=execution)
    pieces = parts(data, execution.micro_batch)
    return hybrid_gradients(site, pieces, LocalParts.of(rule, boundary))


@pytest.mark.parametrize("adapter", [None, FullBlocks()])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_segmented_top_has_autograds_gradients_and_the_plain_steps_bits(
    family: str, adapter: FullBlocks | None
) -> None:
    model, data = tiny(family, adapter), batch(0)
    exact = autograd_gradient(model, data)
    for boundary in (0, 1, BLOCKS):
        plain = step(model, boundary, data)
        for segment in SEGMENTS:
            found = step(model, boundary, data, Execution(checkpoint=segment))
            top = exact[model.layout.cut(boundary) :]
            torch.testing.assert_close(found.top, top, rtol=1e-4, atol=1e-7)
            assert torch.equal(found.top, plain.top)
            assert torch.equal(found.scalars, plain.scalars)
            assert found.loss == plain.loss


@pytest.mark.parametrize("family", ["opt-350m", "gemma3"])
def test_segments_of_blocks_stored_small_give_the_plain_steps_bits(family: str) -> None:
    model, data = tiny(family, storage_dtype=torch.bfloat16), batch(1)
    plain = step(model, 1, data)
    for segment in SEGMENTS:
        found = step(model, 1, data, Execution(checkpoint=segment))
        assert torch.equal(found.top, plain.top)
        assert torch.equal(found.scalars, plain.scalars)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_recomputed_bottom_has_autograds_gradients_in_segments_of_any_size(family: str) -> None:
    model, data = tiny(family), batch(2)
    exact = autograd_gradient(model, data)
    for boundary in (1, 3, BLOCKS):
        for segment in (0, *SEGMENTS):
            found = step(model, boundary, data, Execution(checkpoint=segment), EXACT)
            assert found.bottom is not None
            whole = torch.cat([found.bottom, found.top])
            torch.testing.assert_close(whole, exact, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_add_up_to_the_batch(micro_batch: int) -> None:
    model, data = tiny("qwen2"), batch(3, rows=5)
    plain = step(model, 2, data)
    found = step(model, 2, data, Execution(micro_batch=micro_batch, checkpoint=1))
    torch.testing.assert_close(found.top, plain.top, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.scalars, plain.scalars, rtol=2e-3, atol=1e-4)
    assert found.loss == pytest.approx(plain.loss, rel=1e-6)
    assert found.examples == 5


def deep(**options: torch.dtype) -> SplitModel:
    """Twelve blocks, wide enough for activations to rule."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=12,
        num_attention_heads=4,
        vocab_size=97,
        bos_token_id=1,
        eos_token_id=2,
    )
    return build_split(config, None, adapter=Lora(rank=2), **options)


def peak(
    model: SplitModel,
    boundary: int,
    execution: Execution = PLAIN,
    rule: LocalRule = HYBRID,
    rows: int = 8,
) -> int:
    """Largest number of live bytes of a step, weights not counted."""
    with LiveBytes() as counter:
        step(model, boundary, batch(0, rows=rows, length=32), execution, rule)
    return counter.peak


def test_segments_and_micro_batches_bound_the_peak() -> None:
    model = deep()
    plain = peak(model, 0)
    by_segment = {k: peak(model, 0, Execution(checkpoint=k)) for k in (1, 3, 6, 12)}
    assert by_segment[12] <= 1.01 * plain
    assert by_segment[6] < 0.65 * plain
    assert by_segment[3] < 0.45 * plain
    assert by_segment[1] < 0.35 * plain
    parts_too = peak(model, 0, Execution(micro_batch=1, checkpoint=3))
    assert parts_too < 0.25 * by_segment[3]


def test_segments_free_the_activations_of_blocks_stored_small_too() -> None:
    """Hooks that hold up-cast copies back must not hold activations either."""
    wide, small = deep(), deep(storage_dtype=torch.bfloat16)
    block = sum(p.numel() * 4 for p in wide.blocks[0].parameters() if not p.requires_grad)
    execution = Execution(checkpoint=2)
    assert peak(small, 0, execution) - peak(wide, 0, execution) < 2 * block


@pytest.mark.parametrize("boundary", [3, 6, 9])
def test_exact_bottom_gradients_fit_where_the_hybrid_step_fits(boundary: int) -> None:
    model = deep()
    hybrid = peak(model, boundary)
    sizes = (Execution(checkpoint=k) for k in (1, 2, 3))
    assert min(peak(model, boundary, execution, EXACT) for execution in sizes) <= hybrid


def test_impossible_values_are_refused() -> None:
    for field in ("micro_batch", "checkpoint"):
        with pytest.raises(HoflError, match=f"{field} must not be negative, got -1"):
            Execution(**{field: -1})
