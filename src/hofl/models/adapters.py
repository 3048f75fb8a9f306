"""Which parameters are trained: LoRA matrices (through ``peft``) or whole blocks.

Either way the trainable parameters become views of one flat FP32 vector in model order, so that a
segment is a slice and an optimizer step is one operation on it.
"""

from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, cast

import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hofl.errors import HoflError
from hofl.layout import Coordinate, Layout
from hofl.models.families import Family
from hofl.randomness import Purpose, generator

ADAPTER = "default"


@dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA on the query and value projections; the paper's rank 8, alpha 16, dropout 0."""

    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ()

    def attach(self, model: PreTrainedModel, family: Family) -> PeftModel:
        """Inject the adapters; only they are trainable afterwards."""
        targets = list(self.targets or family.lora_targets)
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules=targets,
            task_type="CAUSAL_LM",
            # Conv1D (GPT-2) stores its weight transposed.
            fan_in_fan_out=model.config.model_type == "gpt2",
        )
        try:
            return cast(PeftModel, get_peft_model(model, config, autocast_adapter_dtype=True))
        except ValueError as error:
            leaves = {
                name.rsplit(".", 1)[-1]
                for name, part in model.named_modules()
                if isinstance(part, nn.Linear | Conv1D)
            }
            raise HoflError(
                f"LoRA targets {targets} are not in this model ({error}). "
                f"It has {', '.join(sorted(leaves))}."
            ) from None


@dataclass(frozen=True)
class FullBlocks:
    """Every floating-point weight of every block is trained; embeddings and head stay frozen."""

    def attach(self, model: PreTrainedModel, family: Family) -> PreTrainedModel:
        """Mark the block weights, in FP32, as the only trainable ones."""
        model.requires_grad_(False)
        for block in family.blocks_of(model):
            block.float().requires_grad_(True)
        return model


def trainable_layout(model: nn.Module, blocks: list[nn.Module]) -> Layout:
    """Names, shapes and blocks of the trainable parameters, in model order."""
    names, shapes, owners = [], [], []
    for index, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            if parameter.requires_grad:
                names.append(name)
                shapes.append(tuple(parameter.shape))
                owners.append(index)
    inside = {id(p) for block in blocks for p in block.parameters()}
    strays = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in inside]
    if strays:
        raise HoflError(f"trainable parameters outside the blocks are not supported: {strays[:3]}.")
    return Layout(tuple(names), tuple(shapes), tuple(owners), len(blocks))


def bind_flat(blocks: list[nn.Module], layout: Layout) -> Tensor:
    """Move the trainable parameters into one flat vector [d]; they become views of it."""
    parameters = [parameter_at(blocks, coordinate) for coordinate in layout.coordinates]
    flat = torch.cat([p.detach().reshape(-1).float() for p in parameters])
    for parameter, c in zip(parameters, layout.coordinates, strict=True):
        parameter.data = flat[c.start : c.stop].view(c.shape)
    return flat


def parameter_at(blocks: list[nn.Module], coordinate: Coordinate) -> nn.Parameter:
    """The parameter a coordinate points to."""
    return blocks[coordinate.block].get_parameter(coordinate.name)


def lora_start(layout: Layout, seed: int) -> Tensor:
    """w_0 of a LoRA adapter: A uniform in +-1/sqrt(inputs) from the run's seed, B zero."""
    flat = torch.zeros(layout.size)
    for c in layout.coordinates:
        if "lora_A" in c.name:
            bound = 1.0 / sqrt(c.shape[-1])
            draw = generator(seed, Purpose.ADAPTER, c.index).uniform(-bound, bound, c.size)
            flat[c.start : c.stop] = torch.from_numpy(draw).float()
    return flat


def lora_layers(block: nn.Module) -> dict[str, LoraLayer]:
    """The LoRA layers of a block by their path in it."""
    return {path: part for path, part in block.named_modules() if isinstance(part, LoraLayer)}


def save_adapter(model: nn.Module, folder: Path, base: str) -> None:
    """Write what was trained: a PEFT adapter, or the whole model after full-block training."""
    if isinstance(model, PeftModel):
        config = model.peft_config[ADAPTER]
        model.peft_config[ADAPTER] = replace(config, base_model_name_or_path=base)
        model.save_pretrained(str(folder), save_embedding_layers=False)
        model.peft_config[ADAPTER] = config
    else:
        cast(PreTrainedModel, model).save_pretrained(str(folder))


def load_trained(folder: Path) -> Any:
    """What :func:`save_adapter` wrote, as any user of the Hugging Face libraries would load it."""
    if (folder / "adapter_config.json").is_file():
        return AutoPeftModelForCausalLM.from_pretrained(str(folder))
    return AutoModelForCausalLM.from_pretrained(str(folder))
