"""Tiny random models of every family, and batches for them."""

from typing import Any

import torch
from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
    SmolLM3Config,
)

from hofl.batch import Batch, ChooseWord
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
    "gemma3": Gemma3TextConfig(**_GATED, head_dim=8, sliding_window=4),
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
PAPER_FAMILIES = ("opt", "qwen2", "smollm3", "llama")


def tiny(family: str, adapter: Lora | FullBlocks | None = None, **options: Any) -> SplitModel:
    """A random model of a family, LoRA rank 2, its adapter moved off the start (B is not zero)."""
    chosen = adapter or Lora(rank=2, alpha=4)
    model = build_split(CONFIGS[family], None, adapter=chosen, seed=1, **options)
    noise = torch.randn(model.layout.size, generator=torch.Generator().manual_seed(3))
    model.load(model.w + 0.05 * noise)
    return model


def batch(seed: int, rows: int = 3, length: int = 10) -> Batch:
    """Random tokens, slots at different positions, four label words."""
    rng = torch.Generator().manual_seed(seed)
    return Batch(
        input_ids=torch.randint(3, VOCABULARY, (rows, length), generator=rng),
        rows=torch.arange(rows),
        columns=torch.randint(length // 2, length, (rows,), generator=rng),
        goal=ChooseWord(torch.tensor([5, 6, 7, 8]), torch.randint(0, 4, (rows,), generator=rng)),
        examples=rows,
    )


def parts(data: Batch, size: int) -> list[Batch]:
    """The batch in micro-batches of ``size`` rows; 0 is the batch itself."""
    assert isinstance(data.goal, ChooseWord)
    found = []
    for start in range(0, data.examples, size or data.examples):
        mine = slice(start, start + (size or data.examples))
        goal = ChooseWord(data.goal.candidates, data.goal.targets[mine])
        columns = data.columns[mine]
        rows = torch.arange(len(columns))
        found.append(Batch(data.input_ids[mine], rows, columns, goal, len(columns)))
    return found
