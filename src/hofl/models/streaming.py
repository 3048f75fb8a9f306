"""Blocks whose frozen weights stay in the model's files and are read when the block runs.

A weight that is away is an empty tensor: using it by mistake fails loudly. Embeddings, final norm
and head are needed in every pass and stay; in the files' own dtype they are mapped, so that of a
token table only the rows in use take memory.
"""

from copy import deepcopy
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM

from hofl.errors import HoflError
from hofl.models.families import Family
from hofl.models.files import StoredTensor, stored_name
from hofl.models.precision import Reader


def block_readers(
    model: Any,
    family: Family,
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[nn.Parameter, Reader]:
    """How to read each weight of each block; empty when the files do not have all of them."""
    inside = {id(p) for block in family.blocks_of(model) for p in block.parameters()}
    readers: dict[nn.Parameter, Reader] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in inside:
            found = stored.get(stored_name(name, model.base_model_prefix, stored) or "")
            if found is None or found.shape != tuple(parameter.shape):
                return {}
            readers[parameter] = _reader(found, dtype, device)
    return readers


def model_without_blocks(
    config: Any,
    family: Family,
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    """The model with everything but its blocks' weights, which have a shape and no memory."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype)
    inside = {id(p) for block in family.blocks_of(model) for p in block.parameters()}
    for owner, name, path, parameter in _named(model):
        found = stored.get(stored_name(path, model.base_model_prefix, stored) or "")
        if id(parameter) in inside:
            value = torch.empty(1, dtype=dtype, device=device).expand(parameter.shape)
        elif found is None or found.shape != tuple(parameter.shape):
            continue  # a tied head; what else is missing is told below
        else:
            value = found.mapped().to(device, dtype)
        owner._parameters[name] = nn.Parameter(value, requires_grad=False)
    model.tie_weights()
    missing = [path for _, _, path, parameter in _named(model) if parameter.is_meta]
    if missing:
        raise HoflError(
            f"{missing[0]} and {len(missing) - 1} more weights are not in the model's safetensors "
            "files, so it cannot be streamed. Get the model again, or do not stream it."
        )
    for owner in model.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            owner._buffers[name] = buffer.to(device)
    return model


def _reader(stored: StoredTensor, dtype: torch.dtype, device: torch.device) -> Reader:
    return lambda: stored.read().to(device, dtype)


def _named(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Parameter]]:
    """Owner, name in it, full path and value of every parameter."""
    return [
        (owner, name, f"{path}.{name}" if path else name, parameter)
        for path, owner in model.named_modules()
        for name, parameter in owner.named_parameters(recurse=False)
    ]
