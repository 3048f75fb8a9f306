"""Tiny random models of every family, and batches for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
    SmolLM3Config,
)

from hofl.core.batch import Batch, ChooseWord, Texts
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel

VOCABULARY = 97
BLOCKS = 4
_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GATED: dict[str, Any] = {**_COMMON, "intermediate_size": 48, "num_key_value_heads": 2}

CONFIGS: dict[str, Any] = {
    "opt": OPTConfig(**_COMMON, ffn_dim=48, word_embed_proj_dim=32),
    # OPT-350m's layout: a narrow embedding, projections around the blocks, norms after them.
    "opt-350m": OPTConfig(
        **_COMMON, ffn_dim=48, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
    "qwen2": Qwen2Config(**_GATED),
    # Every fourth block goes without rotary embeddings, as in the real one.
    "smollm3": SmolLM3Config(**_GATED, pad_token_id=0),
    "llama": LlamaConfig(**_GATED),
    # A window of 4 tokens, so that sliding and full attention differ on 10 tokens.
    "gemma3": Gemma3TextConfig(
        **_GATED,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "gpt2": GPT2Config(
        n_embd=32,
        n_layer=BLOCKS,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    ),
}
_OLD: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": BLOCKS,
    "n_head": 4,
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FOUND: dict[str, dict[str, Any]] = {
    "qwen3": {**_GATED, "head_dim": 8},
    "mistral": {**_GATED, "sliding_window": 4},
    "phi3": {**_GATED, "pad_token_id": 0},
    # Caps small enough to bend the scores of a random model.
    "gemma2": {
        **_GATED,
        "head_dim": 8,
        "sliding_window": 4,
        "query_pre_attn_scalar": 1,
        "initializer_range": 0.3,
        "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 0.2,
    },
    "gpt_neox": {**_COMMON, "intermediate_size": 48},
    "olmo": _GATED,
    "olmo2": _GATED,
    "granite": {**_GATED, "logits_scaling": 4.0, "embedding_multiplier": 3.0},
    "starcoder2": {**_GATED, "sliding_window": 4},
    "phi": _GATED,
    "cohere": {**_GATED, "logit_scale": 0.25},
    "cohere2": {**_GATED, "logit_scale": 0.25, "sliding_window": 4},
    "stablelm": _GATED,
    "mixtral": {**_GATED, "num_local_experts": 3},
    "gpt_bigcode": _OLD,
    # Attention of their own, which cannot be replaced.
    "gptj": {**_OLD, "rotary_dim": 4},
    "falcon": _COMMON,
    # And with tables that are shorter than a batch: ALiBi in place of positions, a causal mask.
    "mpt": {
        "d_model": 32,
        "n_layers": BLOCKS,
        "n_heads": 4,
        "vocab_size": VOCABULARY,
        "max_seq_len": 12,
    },
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": BLOCKS,
        "num_heads": 4,
        "attention_types": [[["global", "local"], BLOCKS // 2]],
        "window_size": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 12,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
FOUND: dict[str, Any] = {kind: AutoConfig.for_model(kind, **x) for kind, x in _FOUND.items()}
"""Types without a row in the table of families."""
PAPER_FAMILIES = ("opt", "qwen2", "smollm3", "llama")


def tiny(family: str, adapter: Lora | FullBlocks | None = None, **options: Any) -> SplitModel:
    """A random model of a family, LoRA rank 2, its adapter moved off the start (B is not zero)."""
    chosen = adapter or Lora(rank=2, alpha=4)
    model = build_split({**CONFIGS, **FOUND}[family], None, adapter=chosen, seed=1, **options)
    noise = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(3))
    model.load(model.w + 0.05 * noise)
    return model


def batch(seed: int, rows: int = 3, length: int = 10) -> Batch:
    """Random texts of different lengths, four label words after each."""
    rng = torch.Generator().manual_seed(seed)
    shorter = torch.randint(0, length // 2 + 1, (rows - 1,), generator=rng)
    return batch_of(seed, [length, *(length - shorter).tolist()])


def batch_of(seed: int, lengths: Sequence[int]) -> Batch:
    """Random texts of these lengths, four label words after each."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (sum(lengths),), generator=rng)
    targets = torch.randint(0, 4, (len(lengths),), generator=rng)
    return classified(tokens.split([*lengths]), targets)


def classified(texts: Sequence[Tensor], targets: Tensor) -> Batch:
    """Texts with a label word to predict after the last token of each."""
    lengths = torch.tensor([len(text) for text in texts])
    return Batch(
        texts=Texts(torch.cat([*texts]), tuple(lengths.tolist())),
        slots=lengths.cumsum(0) - 1,
        goal=ChooseWord(torch.tensor([5, 6, 7, 8]), targets),
        examples=len(texts),
    )


def parts(data: Batch, size: int) -> list[Batch]:
    """The batch in micro-batches of ``size`` texts; 0 is the batch itself."""
    assert isinstance(data.goal, ChooseWord)
    texts, targets, size = split(data), data.goal.targets, size or data.examples
    starts = range(0, data.examples, size)
    return [classified(texts[s : s + size], targets[s : s + size]) for s in starts]


def split(data: Batch) -> tuple[Tensor, ...]:
    """The tokens of each text."""
    return data.texts.tokens.split(data.texts.lengths)


@dataclass(frozen=True)
class Padded:
    """A batch as people write it without packing: the oracle of packed ones.

    Args:
        input_ids: [R, T] padded on the right; attention is causal, so nothing sees the padding.
        rows: [M] the text of each slot.
        columns: [M] its place there.
    """

    input_ids: Tensor
    rows: Tensor
    columns: Tensor


def padded(data: Batch) -> Padded:
    """Pad the texts of a batch to the longest."""
    starts = torch.tensor([0, *data.texts.lengths]).cumsum(0)
    rows = torch.searchsorted(starts, data.slots, right=True) - 1
    ids = torch.nn.utils.rnn.pad_sequence(split(data), batch_first=True)
    return Padded(ids, rows, data.slots - starts[rows])


def pack(hidden: Tensor, data: Batch) -> Tensor:
    """The real tokens of padded activations [R, T, D] in one row, [1, N, D]."""
    rows = zip(hidden, data.texts.lengths, strict=True)
    return torch.cat([row[:length] for row, length in rows])[None]


def slot_logits(module: Any, data: Batch) -> Tensor:
    """A whole model's scores at the slots, [M, V], from its own forward pass on padded texts."""
    plain = padded(data)
    return module(input_ids=plain.input_ids).logits[plain.rows, plain.columns]
