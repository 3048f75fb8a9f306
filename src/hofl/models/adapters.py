"""Which parameters are trained: LoRA matrices (through ``peft``) or whole blocks.

Either way the trainable parameters become views of one flat FP32 vector in model order, so that a
segment is a slice and an optimizer step is one operation on it.
"""

import json
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hofl.core.errors import HoflError
from hofl.core.layout import SURROGATE, Coordinate, Layout
from hofl.core.randomness import Purpose, generator
from hofl.models.families import Family, linear_names
from hofl.models.sources import cached_copy

ADAPTER = "default"


@dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA on the query and value projections; the paper's rank 8, alpha 16, dropout 0."""

    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ()

    def attach(self, model: PreTrainedModel, family: Family) -> PeftModel:
        """Insert the adapters; only they are trainable afterwards."""
        targets = list(self.targets or family.lora_targets)
        choices = ", ".join(sorted(linear_names(model)))
        if not targets:
            raise HoflError(
                f"query and value projections of model type {model.config.model_type!r} are not "
                f"known: set adapter.targets to some of {choices}."
            )
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=0.0,
            target_modules=targets,
            task_type="CAUSAL_LM",
            # Conv1D (GPT-2) stores its weight transposed.
            fan_in_fan_out=any(
                isinstance(part, Conv1D) and path.rsplit(".", 1)[-1] in targets
                for path, part in model.named_modules()
            ),
        )
        try:
            return cast(PeftModel, get_peft_model(model, config, autocast_adapter_dtype=True))
        except ValueError as error:
            raise HoflError(
                f"LoRA targets {targets} are not in this model ({error}). It has {choices}."
            ) from None


@dataclass(frozen=True)
class FullBlocks:
    """Every floating-point weight of every block; embeddings and head stay frozen."""

    def attach(self, model: PreTrainedModel, family: Family) -> PreTrainedModel:
        """Make the block weights, in FP32, the only trainable ones."""
        model.requires_grad_(False)
        for block in family.blocks_of(model):
            block.float().requires_grad_(True)
        return model


@dataclass(frozen=True)
class SurrogateParameters:
    """Trainable parameters of a surrogate, beside the model's.

    Args:
        names: of the parameters.
        shapes: of each.
        start: their values at the start of a run, flat float32.
        copies: blocks that the surrogate copies from above the boundary. The LoRA matrices of copy
            i follow as ``auxiliary.i.NAME`` (:meth:`with_copies`).
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    start: Tensor
    copies: int = 0

    def with_copies(self, block: nn.Module) -> "SurrogateParameters":
        """Return them with the LoRA matrices of the copies; ``block`` is one with adapters."""
        if not self.copies:
            return self
        trained = [(name, p.shape) for name, p in block.named_parameters() if p.requires_grad]
        if not all("lora_" in name for name, _ in trained):
            raise HoflError("a head of copied blocks trains their LoRA: set adapter.kind=lora.")
        names, shapes, pieces = list(self.names), list(self.shapes), [self.start]
        for i in range(self.copies):
            for place, (name, shape) in enumerate(trained):
                names.append(copied_name(i, name))
                shapes.append(tuple(shape))
                values = torch.zeros(shape.numel(), device="cpu")
                if "lora_A" in name:
                    rng = generator(1 + i, Purpose.ADAPTER, place)
                    bound = 1.0 / sqrt(shape[-1])
                    values = torch.from_numpy(rng.uniform(-bound, bound, shape.numel())).float()
                pieces.append(values)
        return replace(self, names=tuple(names), shapes=tuple(shapes), start=torch.cat(pieces))


def copied_name(copy: int, name: str) -> str:
    """Return how a parameter of a surrogate's copy of a block is called."""
    return f"auxiliary.{copy}.{name}"


def trainable_layout(
    model: nn.Module, blocks: list[nn.Module], surrogate: SurrogateParameters | None = None
) -> Layout:
    """Return names, shapes and blocks of what is trained: the surrogate's, then by block."""
    names = list(surrogate.names if surrogate else ())
    shapes = list(surrogate.shapes if surrogate else ())
    owners = [SURROGATE] * len(names)
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


def bind_flat(
    blocks: list[nn.Module], layout: Layout, surrogate: SurrogateParameters | None = None
) -> Tensor:
    """Move the trainable parameters into one flat vector [d]; the model's become views of it."""
    inside = layout.coordinates[len(layout.surrogate) :]
    parameters = [parameter_at(blocks, coordinate) for coordinate in inside]
    pieces = [p.detach().reshape(-1).float() for p in parameters]
    if surrogate is not None:
        pieces.insert(0, surrogate.start.to(pieces[0].device) if pieces else surrogate.start)
    flat = torch.cat(pieces)
    for parameter, c in zip(parameters, inside, strict=True):
        parameter.data = flat[c.start : c.stop].view(c.shape)
    return flat


def parameter_at(blocks: list[nn.Module], coordinate: Coordinate) -> nn.Parameter:
    """Return the parameter that a coordinate points to."""
    return blocks[coordinate.block].get_parameter(coordinate.name)


def lora_start(layout: Layout, seed: int, surrogate: SurrogateParameters | None = None) -> Tensor:
    """Return w_0 of a LoRA adapter: A uniform in +-1/sqrt(inputs) from the run's seed, B zero."""
    flat = torch.zeros(layout.size)
    if surrogate is not None:
        flat[: layout.cut(0)] = surrogate.start
    for c in layout.coordinates[len(layout.surrogate) :]:
        if "lora_A" in c.name:
            bound = 1.0 / sqrt(c.shape[-1])
            draw = generator(seed, Purpose.ADAPTER, c.index).uniform(-bound, bound, c.size)
            flat[c.start : c.stop] = torch.from_numpy(draw).float()
    return flat


def lora_layers(block: nn.Module) -> dict[str, LoraLayer]:
    """Return the LoRA layers of a block by their path in it."""
    return {path: part for path, part in block.named_modules() if isinstance(part, LoraLayer)}


def save_adapter(model: nn.Module, folder: Path, base: str, card: str) -> None:
    """Write what was trained: a PEFT adapter, or the whole model after full-block training.

    Args:
        model: the trained module.
        folder: where to.
        base: name of the base model, for whoever loads the adapter.
        card: text of the model card, README.md.
    """
    if isinstance(model, PeftModel):
        config = model.peft_config[ADAPTER]
        model.peft_config[ADAPTER] = replace(config, base_model_name_or_path=base)
        model.save_pretrained(str(folder), save_embedding_layers=False)
        model.peft_config[ADAPTER] = config
    else:
        cast(PreTrainedModel, model).save_pretrained(str(folder))
    readme = folder / "README.md"
    readme.write_text(card, encoding="utf-8")
    for path in folder.iterdir():  # safetensors writes files that only their owner may read
        path.chmod(readme.stat().st_mode & 0o777)


def save_merged(adapter: Path, base: str, folder: Path) -> None:
    """Write a base model with an adapter merged into its weights, and its tokenizer.

    Args:
        adapter: folder of a PEFT adapter.
        base: folder or hub id of the base model.
        folder: where to.
    """
    dtype = AutoConfig.from_pretrained(base).dtype
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(whole, str(adapter)).merge_and_unload()
    merged.to(dtype or torch.float32).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(base).save_pretrained(str(folder))


def load_trained(folder: Path, base: str | None = None) -> Any:
    """Load what :func:`save_adapter` wrote, as any user of the Hugging Face libraries would.

    Args:
        folder: of the adapter, or of the whole model after full-block training.
        base: folder or hub id of the base model. Unless given, it is the one that the adapter
            names; the hub id of a built-in model means its local copy, if it has been fetched.
    """
    config = folder / "adapter_config.json"
    if not config.is_file():
        return AutoModelForCausalLM.from_pretrained(str(folder))
    base = base or cached_copy(json.loads(config.read_text())["base_model_name_or_path"])
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder))
