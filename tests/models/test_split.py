"""Splitting models: the split computes what the model computes, for every family and boundary."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig, Qwen2Config

from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.models.adapters import FullBlocks, Lora, trainable_layout
from hofl.models.families import family_of
from hofl.models.loading import build_split, load_model
from hofl.models.split import SplitModel
from support.models import BLOCKS, CONFIGS, batch, parts, slot_logits, tiny


@pytest.mark.parametrize("family", CONFIGS)
def test_blocks_one_by_one_give_the_models_own_logits(family: str) -> None:
    model, data = tiny(family), batch(0)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        z = inputs.hidden
        for index in range(BLOCKS):
            z = model.block(index, z, inputs)
        ours = model.head(z, data).words(data.goal.candidates)
        theirs = slot_logits(model.module, data)[:, data.goal.candidates]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", CONFIGS)
def test_texts_in_a_row_do_not_see_each_other(family: str) -> None:
    model, data = tiny(family), batch(1)

    def scores(part: Batch) -> torch.Tensor:
        inputs = model.inputs(part.texts)
        with torch.no_grad():
            return model.head(model.forward(inputs.hidden, inputs, 0, BLOCKS), part).words(
                part.goal.candidates
            )

    alone = torch.cat([scores(part) for part in parts(data, 1)])
    torch.testing.assert_close(scores(data), alone, rtol=1e-5, atol=1e-6)


def test_recording_a_batch_leaves_the_model_as_it_was() -> None:
    model, data = tiny("smollm3"), batch(2)
    with torch.no_grad():
        before = slot_logits(model.module, data)
        model.inputs(data.texts)
        after = slot_logits(model.module, data)
    assert torch.equal(before, after)
    assert all("forward" not in vars(block) for block in model.blocks)


@pytest.mark.parametrize("family", CONFIGS)
def test_layout_covers_exactly_the_trainable_parameters_in_order(family: str) -> None:
    for adapter in (Lora(rank=2), FullBlocks()):
        model = build_split(CONFIGS[family], None, adapter=adapter)
        trainable = [p for p in model.module.parameters() if p.requires_grad]
        assert model.layout.size == sum(p.numel() for p in trainable)
        flat = torch.cat([p.detach().reshape(-1) for p in trainable])
        assert torch.equal(flat, model.w)
        cuts = [model.layout.cut(b) for b in range(BLOCKS + 1)]
        assert cuts[0] == 0
        assert cuts[-1] == model.layout.size
        assert all(a < b for a, b in pairwise(cuts))


@pytest.mark.parametrize(
    ("config", "full", "tiers"),
    [
        (
            OPTConfig(),  # facebook/opt-125m's own sizes
            1_179_648,
            {3: 884_736, 6: 589_824, 9: 294_912},
        ),
        (
            Qwen2Config(
                hidden_size=1536,
                intermediate_size=8960,
                num_hidden_layers=28,
                num_attention_heads=12,
                num_key_value_heads=2,
            ),
            4_358_144,
            {8: 3_112_960, 16: 1_867_776, 24: 622_592},
        ),
    ],
)
def test_lora_of_the_papers_models_has_the_published_uplink(
    config: Any, full: int, tiers: dict[int, int]
) -> None:
    """Bytes per client and round at the paper's boundaries, without building any weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        family = family_of(model)
        peft = Lora().attach(model, family)
        layout = trainable_layout(peft, family.blocks_of(model))
    assert 4 * layout.size == full
    for boundary, sent in tiers.items():
        assert 4 * (layout.size - layout.cut(boundary)) == sent


def test_a_boundary_out_of_range_says_what_is_allowed() -> None:
    layout = tiny("llama").layout
    for boundary in (-1, BLOCKS + 1):
        with pytest.raises(HoflError, match=r"boundary .* Use 0 .* to 4"):
            layout.cut(boundary)


def test_unknown_lora_targets_list_what_the_model_has() -> None:
    with pytest.raises(HoflError, match=r"nonsense.*k_proj"):
        build_split(CONFIGS["llama"], None, adapter=Lora(targets=("nonsense",)))


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(HoflError, match=r"cannot load model .*smollm2-135m-instruct") as caught:
        load_model(str(empty))
    assert "\n" not in str(caught.value)


def test_a_folder_with_only_a_configuration_builds_random_weights(tmp_path: Path) -> None:
    CONFIGS["qwen2"].save_pretrained(tmp_path)
    one = load_model(str(tmp_path), weights="random", seed=4).split
    same = load_model(str(tmp_path), weights="random", seed=4).split
    other = load_model(str(tmp_path), weights="random", seed=5).split
    assert torch.equal(one.base.lm_head.weight, same.base.lm_head.weight)
    assert torch.equal(one.w, same.w)
    assert not torch.equal(one.base.lm_head.weight, other.base.lm_head.weight)
    assert not torch.equal(one.w, other.w)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "qwen2"


def gradient(model: SplitModel, boundary: int) -> torch.Tensor:
    data = batch(3)
    inputs = model.inputs(data.texts)
    loss = model.loss(model.forward(inputs.hidden, inputs, 0, BLOCKS), data)
    grads = torch.autograd.grad(loss, model.parameters_in(range(boundary, BLOCKS)))
    return torch.cat([g.reshape(-1) for g in grads])


@pytest.mark.parametrize("family", CONFIGS)
def test_bf16_storage_with_fp32_compute_equals_an_fp32_model_of_the_same_weights(
    family: str,
) -> None:
    stored = tiny(family, storage_dtype=torch.bfloat16)
    wide = tiny(family, storage_dtype=torch.bfloat16)
    for parameter in wide.base.parameters():  # the oracle: stored weights up-cast for good
        if parameter is not wide.base.get_input_embeddings().weight:
            parameter.data = parameter.data.float()
    assert stored.base.get_input_embeddings().weight.dtype == torch.bfloat16
    assert stored.w.dtype == torch.float32
    torch.testing.assert_close(gradient(stored, 0), gradient(wide, 0), rtol=1e-6, atol=1e-9)
    assert stored.base.get_input_embeddings().weight.dtype == torch.bfloat16


def test_bf16_compute_is_available_and_visibly_coarser() -> None:
    fine = tiny("llama", storage_dtype=torch.bfloat16)
    coarse = tiny("llama", storage_dtype=torch.bfloat16, compute_dtype=torch.bfloat16)
    data = batch(3)
    assert coarse.inputs(data.texts).hidden.dtype == torch.bfloat16
    reference, rough = gradient(fine, 0), gradient(coarse, 0)
    error = (rough - reference).norm() / reference.norm()
    assert 1e-4 < error < 0.3
