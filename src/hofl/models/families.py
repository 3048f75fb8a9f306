"""Where a causal language model keeps its parts: found by structure, except for the rows here.

A model of a type without a row is searched: its blocks are the longest list of modules of one
class, its decoder is what holds both them and the token table. That is a guess, and
``hofl.models.agreement`` checks it against the model itself when it is loaded. The types with a row
are covered by tests, and need no check.
"""

from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import Any

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as PEFT_TARGETS
from torch import nn
from transformers.pytorch_utils import Conv1D

from hofl.core.errors import HoflError


@dataclass(frozen=True)
class Family:
    """Attribute paths inside a ``...ForCausalLM`` model.

    Args:
        decoder: the module that turns token ids into hidden states.
        blocks: its list of transformer blocks, relative to ``decoder``.
        after: modules between the last block and the head, relative to ``decoder``; missing ones
            are skipped.
        lora_targets: names of the query and value projections; none where they are not known.
    """

    decoder: str
    blocks: str
    after: tuple[str, ...]
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")

    def decoder_of(self, model: nn.Module) -> nn.Module:
        """Return the decoder module of a model."""
        return attrgetter(self.decoder)(model)

    def blocks_of(self, model: nn.Module) -> list[nn.Module]:
        """Return the transformer blocks in order."""
        return list(attrgetter(self.blocks)(self.decoder_of(model)))

    def after_blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the final norm (and projection, if any) between last block and head."""
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
    # GPT-2 keeps query, key and value in one matrix, which gets the LoRA.
    "gpt2": Family(decoder="transformer", blocks="h", after=("ln_f",), lora_targets=("c_attn",)),
}


def family_of(model: Any) -> Family:
    """Return where a causal LM keeps its parts: by its ``model_type``, or by its structure."""
    return FAMILIES.get(model.config.model_type) or found_family(model)


def found_family(model: Any) -> Family:
    """Find the parts of a causal LM by its structure."""
    kind, parts = model.config.model_type, dict(model.named_modules())
    lists = [path for path, part in parts.items() if _is_block_list(part)]
    # A list inside a block, such as a mixture's experts, may be longer than the list of blocks.
    outer = [path for path in lists if not any(path.startswith(f"{other}.") for other in lists)]
    tables = [path for path, part in parts.items() if part is model.get_input_embeddings()]
    longest = max(outer, key=lambda path: len(parts[path]), default="")
    decoder = _common(longest, tables[0]) if tables else ""
    # Without a decoder, a module that holds blocks and table but not the head, there is no guess.
    if not decoder or model.get_output_embeddings() is None:
        raise HoflError(
            f"model type {kind!r} cannot be split: it has no list of blocks of one class between a "
            "token table and a head. Use another model, or add a row to hofl/models/families.py."
        )
    inside = longest.removeprefix(f"{decoder}.")
    children = dict(parts[decoder].named_children())
    later = [*children][[*children].index(inside.partition(".")[0]) + 1 :]
    return Family(
        decoder=decoder,
        blocks=inside,
        # Modules are made in the order of use, except rotary tables, which take positions too.
        after=tuple(
            name for name in later if len(signature(children[name].forward).parameters) == 1
        ),
        lora_targets=_lora_targets(kind, parts[longest][0]),
    )


def _is_block_list(part: nn.Module) -> bool:
    return isinstance(part, nn.ModuleList) and len({type(block) for block in part}) == 1


def _common(first: str, other: str) -> str:
    """Return the innermost path that holds both.

    >>> _common("model.encoder.layers", "model.embed.tokens")
    'model'
    """
    shared = []
    for a, b in zip(first.split("."), other.split("."), strict=False):
        if a != b:
            break
        shared.append(a)
    return ".".join(shared)


def linear_names(part: nn.Module) -> set[str]:
    """Return the last names of the matrices in a module, which LoRA may be attached to."""
    return {
        path.rsplit(".", 1)[-1]
        for path, inner in part.named_modules()
        if isinstance(inner, nn.Linear | Conv1D)
    }


def _lora_targets(kind: str, block: nn.Module) -> tuple[str, ...]:
    """Return query and value (or what holds both) by peft's names for this type, or any type."""
    has = linear_names(block)
    for targets in (PEFT_TARGETS.get(kind), *PEFT_TARGETS.values()):
        if isinstance(targets, list) and has.issuperset(targets):
            pair = [name for name in targets if name in ("q_proj", "v_proj")]
            return tuple(pair if len(pair) > 1 else targets)
    return ()
