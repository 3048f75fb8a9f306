"""Where each supported model family keeps its parts. To add a family, add one row here."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn

from hofl.errors import HoflError


@dataclass(frozen=True)
class Family:
    """Attribute paths inside a ``...ForCausalLM`` model.

    Args:
        decoder: the module that turns token ids into hidden states.
        blocks: its list of transformer blocks, relative to ``decoder``.
        after: modules between the last block and the head, relative to ``decoder``; absent or
            None ones are passed over.
        lora_targets: names of the query and value projections.
    """

    decoder: str
    blocks: str
    after: tuple[str, ...]
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")

    def decoder_of(self, model: nn.Module) -> nn.Module:
        """The decoder module of a model."""
        return attrgetter(self.decoder)(model)

    def blocks_of(self, model: nn.Module) -> list[nn.Module]:
        """The transformer blocks in order."""
        return list(attrgetter(self.blocks)(self.decoder_of(model)))

    def after_blocks(self, model: nn.Module) -> list[nn.Module]:
        """Final norm (and projection, where there is one) between last block and head."""
        decoder = self.decoder_of(model)
        parts = (getattr(decoder, name, None) for name in self.after)
        return [part for part in parts if part is not None]


_LLAMA_LIKE = Family(decoder="model", blocks="layers", after=("norm",))

FAMILIES: dict[str, Family] = {
    "opt": Family(
        decoder="model.decoder", blocks="layers", after=("final_layer_norm", "project_out")
    ),
    "qwen2": _LLAMA_LIKE,
    "smollm3": _LLAMA_LIKE,
    "llama": _LLAMA_LIKE,
    "gemma3_text": _LLAMA_LIKE,
    # GPT-2 keeps query, key and value in one matrix; its LoRA sits on that one.
    "gpt2": Family(decoder="transformer", blocks="h", after=("ln_f",), lora_targets=("c_attn",)),
}


def family_of(config: Any) -> Family:
    """The family of a Hugging Face configuration, by its ``model_type``."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise HoflError(
            f"model family {kind!r} is not supported: known are {', '.join(sorted(FAMILIES))}. "
            "Add a row to hofl/models/families.py."
        )
    return FAMILIES[kind]
