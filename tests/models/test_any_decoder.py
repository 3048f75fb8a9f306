"""Decoders without a row in the table: found by structure, and checked before they are used."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from hofl.core.errors import HoflError
from hofl.core.optim import AdamW
from hofl.memory.plan import memory_plan
from hofl.models import split
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.agreement import check_agreement
from hofl.models.attention import row_mask
from hofl.models.families import FAMILIES, Family, found_family
from hofl.models.loading import build_split, load_model
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import BLOCKS, CONFIGS, FOUND, batch, batch_of, slot_logits, tiny

FUSED = {
    "phi3": "qkv_proj",
    "gpt_neox": "query_key_value",
    "gpt_bigcode": "c_attn",
    "falcon": "query_key_value",
    "mpt": "Wqkv",
}
RULE = LocalRule(optimizer=AdamW(lr=0.01), local_steps=1)
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}


# Longer than the sliding windows; three of them share a row also where it is cut at the longest.
MIXED = batch_of(0, (10, 3, 4, 1, 7))


def own_scores(model: SplitModel) -> Tensor:
    """What the model computes when it is left alone: its own plain attention, padded texts."""
    model.base.set_attn_implementation("eager")
    return slot_logits(model.module, MIXED)[:, MIXED.goal.candidates]


@pytest.mark.parametrize("kind", FOUND)
def test_blocks_one_by_one_give_the_models_own_scores_and_gradients(kind: str) -> None:
    """At the boundary in the middle."""
    model, whole, data = tiny(kind), tiny(kind), MIXED
    expected = own_scores(whole)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        z = model.forward(inputs.hidden, inputs, 0, BLOCKS // 2)
    found = model.head(model.forward(z, inputs, BLOCKS // 2, BLOCKS), data).words(
        data.goal.candidates
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    for one, other in zip(gradient(model, found), gradient(whole, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def gradient(model: SplitModel, scores: Tensor) -> tuple[Tensor, ...]:
    loss = cross_entropy(scores, MIXED.goal.targets)
    return torch.autograd.grad(loss, model.parameters_in(range(BLOCKS // 2, BLOCKS)))


@pytest.mark.parametrize("kind", FOUND)
def test_query_and_value_are_trained(kind: str) -> None:
    names = {name.split(".lora_")[0] for name in tiny(kind).layout.names}
    wanted = {FUSED[kind]} if kind in FUSED else {"q_proj", "v_proj"}
    assert {name.rsplit(".", 1)[-1] for name in names} == wanted


@pytest.mark.parametrize("kind", FOUND)
def test_the_check_passes_what_is_right(kind: str) -> None:
    check_agreement(tiny(kind))


@pytest.mark.parametrize(
    "options",
    [
        {"storage_dtype": torch.bfloat16},
        {"storage_dtype": torch.bfloat16, "compute_dtype": torch.bfloat16},
        {"form": "q8_0"},
    ],
)
def test_the_check_runs_in_any_storage(options: dict[str, Any]) -> None:
    model = tiny("qwen3", **options)
    kept = [parameter.data_ptr() for parameter in model.base.parameters()]
    check_agreement(model)
    assert kept == [parameter.data_ptr() for parameter in model.base.parameters()]
    assert all("forward" not in vars(part) for part in model.base.modules())
    check_agreement(tiny("olmo2", FullBlocks()))


@pytest.mark.parametrize("name", ["qwen2", "smollm3", "llama", "gemma3", "gpt2"])
def test_structure_finds_what_the_table_says(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert found_family(model) == FAMILIES[config.model_type]


def test_a_wrong_guess_is_one_line_that_says_what_differed() -> None:
    model = build_split(FOUND["qwen3"], None, adapter=Lora(rank=2)).module
    without_norm = Family(decoder="model", blocks="layers", after=())
    with pytest.raises(HoflError, match=r"'qwen3' cannot be split.*scores differ by") as caught:
        check_agreement(SplitModel(model, without_norm, torch.float32))
    assert "\n" not in str(caught.value)


def test_a_model_that_ignores_the_mask_of_a_row_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its texts would see each other; alone in their rows they do not."""
    model = tiny("gptj")
    check_agreement(model)
    monkeypatch.setattr(
        split, "row_mask", lambda lengths, dtype, device: row_mask([sum(lengths)], dtype, device)
    )
    with pytest.raises(HoflError, match=r"'gptj' cannot be split.*block by block"):
        check_agreement(model)


def test_equal_scores_with_other_gradients_are_refused_too() -> None:
    """A block that is right in value and, on texts that lie end to end, wrong in its gradient."""
    model = build_split(FOUND["qwen3"], None, adapter=Lora(rank=2))

    def double(_block: nn.Module, _args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if len(hidden) == 1 and hidden.requires_grad:
            hidden.register_hook(lambda gradient: 2 * gradient)

    model.blocks[-1].register_forward_hook(double)
    with pytest.raises(HoflError, match=r"cannot be split.*gradients above boundary . differ by"):
        check_agreement(model)


def test_blocks_beside_the_head_are_not_guessed_at() -> None:
    """A model without a decoder of its own: nothing holds blocks and token table alone."""
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(FOUND["qwen3"])
    flat = nn.Module()
    flat.config, flat.embed, flat.layers = (
        whole.config,
        whole.model.embed_tokens,
        whole.model.layers,
    )
    flat.get_input_embeddings = lambda: flat.embed
    flat.get_output_embeddings = lambda: whole.lm_head
    with pytest.raises(HoflError, match="it has no list of blocks of one class between"):
        found_family(flat)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("bert", {}, "scores differ by"),  # reads both ways
        ("mamba", {}, "scores differ by"),  # its state runs from one text into the next
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 4}, "attention takes s_aux"),
        (
            "llama4_text",
            {"head_dim": 8, "num_local_experts": 2, "attention_chunk_size": 2},
            "chunks of 2 tokens",
        ),
        (
            "llama4_text",
            {"head_dim": 8, "num_local_experts": 2, "floor_scale": 4},
            "from token 4 on.*several texts of 6 tokens.*engine.micro_tokens to 3",
        ),
        ("bloom", {"n_layer": 2, "n_head": 4}, "its code fails with ValueError"),
        ("deepseek_v3", {}, "set adapter.targets to some of .*kv_b_proj"),
        ("t5", {}, "not a causal language model"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(
    kind: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    AutoConfig.for_model(kind, **{**SMALL, **fields}).save_pretrained(tmp_path)
    with pytest.raises(HoflError, match=reason) as caught:
        load_model(str(tmp_path), weights="random", device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_found_model_is_loaded_from_its_files(stream: bool, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = AutoModelForCausalLM.from_config(FOUND["olmo2"])
    whole.save_pretrained(tmp_path)
    model, data = load_model(str(tmp_path), device="cpu", stream=stream).split, batch(0)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        found = model.head(model.forward(inputs.hidden, inputs, 0, BLOCKS), data).words(
            data.goal.candidates
        )
        expected = slot_logits(whole, data)[:, data.goal.candidates]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_plans_are_made_for_found_models_and_refused_in_one_line(tmp_path: Path) -> None:
    for kind in ("gemma2", "gptj"):
        FOUND[kind].save_pretrained(tmp_path / kind)
        plan = memory_plan(str(tmp_path / kind), RULE, batch_size=2, seq_len=8)
        assert len(plan.plain) == BLOCKS + 1
    bloom = AutoConfig.for_model("bloom", hidden_size=32, n_layer=2, n_head=4)
    bloom.save_pretrained(tmp_path / "bloom")
    with pytest.raises(HoflError, match="'bloom' cannot be split into blocks"):
        memory_plan(str(tmp_path / "bloom"), RULE, batch_size=2, seq_len=8)
