"""The weights of a model in its safetensors files: read one by one, mapped, or left on disk.

A tensor is read into fresh memory rather than mapped: what a step holds is then what is counted,
nothing lingers in the resident set, and it is twice as fast as opening a map per block. The rest
of the file stays on disk (and, as far as there is room, in the system's page cache).

A streamed model leaves the weights of its blocks in the files and reads them when the block runs. A
weight that is not in memory is an empty tensor: using it by mistake fails loudly. Embeddings, final
norm and head are needed in every pass and stay; in the files' own dtype they are mapped, so that of
a token table only the rows in use take memory.
"""

import json
import mmap
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import cached_file

from hofl.core.errors import HoflError
from hofl.models.families import Family, family_of
from hofl.models.precision import Reader

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ONE_AT_A_TIME = threading.RLock()
"""Held while transformers makes a model: it replaces methods of its classes meanwhile, and two
threads at once would leave the replacements in place, after which no model has tied weights."""
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is stored: ``size`` bytes at ``start`` of a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> Tensor:
        """Read the tensor into memory of its own."""
        data = torch.empty(self.size, dtype=torch.uint8)
        with self.path.open("rb") as file:
            file.seek(self.start)
            if file.readinto(data.numpy()) != self.size:  # type: ignore[arg-type]
                raise HoflError(
                    f"{self.path} was cut short while it was in use. Get the model again."
                )
        return data.view(self.dtype).view(self.shape)

    def mapped(self) -> Tensor:
        """Map the tensor privately: only pages that are used take memory."""
        page = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as file:
            length = self.start + self.size - page
            view = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=page)
        data = torch.frombuffer(view, dtype=torch.uint8, offset=self.start - page)
        return data.view(self.dtype).view(self.shape)


def stored_tensors(reference: str) -> dict[str, StoredTensor]:
    """Return all tensors of a model folder or hub id by name; empty without safetensors files."""
    tensors: dict[str, StoredTensor] = {}
    single = _local(reference, SINGLE)
    if single is not None:
        return _tensors_in(single)
    index = _local(reference, INDEX)
    if index is not None:
        for shard in _shards(index):
            path = _local(reference, shard)
            if path is None:
                raise HoflError(f"{shard} of {reference} is missing. Get the model again.")
            tensors |= _tensors_in(path)
    return tensors


def can_be_streamed(reference: str) -> bool:
    """Tell whether a model's weights are in safetensors files, or not here yet."""
    folder = Path(reference)
    if (folder / SINGLE).exists() or (folder / INDEX).exists():
        return True
    return not any(folder.glob("*.bin"))


def stored_name(name: str, prefix: str, stored: Mapping[str, Any]) -> str | None:
    """Return a parameter's name in the files: as it is, or without the bare decoder's prefix."""
    return next((n for n in (name, name.removeprefix(f"{prefix}.")) if n in stored), None)


def _shards(index: Path) -> list[str]:
    """Return the files that an index names."""
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HoflError(
            f"cannot load model: {index} is not an index of safetensors files. Get the model again."
        ) from None


def _tensors_in(path: Path) -> dict[str, StoredTensor]:
    """Read a file's header: its length in 8 bytes, then name -> dtype, shape and place as JSON."""
    try:
        with path.open("rb") as file:
            # In a file of another kind the length is any number: read no more than the file.
            length = min(int.from_bytes(file.read(8), "little"), path.stat().st_size)
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(
                path,
                _DTYPES[entry["dtype"]],
                tuple(entry["shape"]),
                8 + length + entry["data_offsets"][0],
                entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if entry["dtype"] in _DTYPES
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HoflError(
            f"cannot load model: {path} is not a safetensors file. Get the model again."
        ) from None
    if max((t.start + t.size for t in tensors.values()), default=0) > path.stat().st_size:
        raise HoflError(f"cannot load model: {path} is cut short. Get the model again.")
    return tensors


def _local(reference: str, name: str) -> Path | None:
    path = cached_file(reference, name, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def model_of_config(config: Any, dtype: torch.dtype) -> Any:
    """Return a causal LM with the weights that ``transformers`` starts from."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise HoflError(
            f"model type {config.model_type!r} is not a causal language model of transformers: use "
            "a decoder such as Llama, Qwen, Gemma, Mistral or OPT."
        )
    try:
        with ONE_AT_A_TIME:
            return AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise HoflError(
            f"config.json does not describe a model of type {config.model_type!r}: {reason}. "
            "Get the model again."
        ) from None


def block_readers(
    model: Any,
    family: Family,
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
    of: slice = slice(None),
) -> dict[nn.Parameter, Reader]:
    """Return how to read each weight of these blocks; empty if the files lack one."""
    inside = {id(p) for block in family.blocks_of(model)[of] for p in block.parameters()}
    readers: dict[nn.Parameter, Reader] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in inside:
            tensor = stored.get(stored_name(name, model.base_model_prefix, stored) or "")
            if tensor is None or tensor.shape != tuple(parameter.shape):
                return {}
            readers[parameter] = FileReader(tensor, dtype, device)
    return readers


@dataclass(frozen=True)
class FileReader:
    """Read a weight from its file onto a device, converted where the file has another dtype."""

    stored: StoredTensor
    dtype: torch.dtype
    device: torch.device

    def __call__(self) -> Tensor:
        """Read the weight; what the file holds and what it is converted to are alive together."""
        return self.stored.read().to(self.device, self.dtype)


def dtype_in_files(readers: Mapping[nn.Parameter, Reader]) -> torch.dtype | None:
    """Return the dtype of weights that can be streamed, as their files have it."""
    dtypes = (reader.stored.dtype for reader in readers.values() if isinstance(reader, FileReader))
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=None)


def model_without_blocks(
    config: Any,
    stored: dict[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
    left_out: Callable[[Any], set[int]] = lambda model: set(),
) -> Any:
    """Load everything but the blocks' weights, which have a shape and no memory.

    ``left_out`` names further parameters by their ``id`` that are not read: they are zero.
    """
    with ONE_AT_A_TIME, init_empty_weights(include_buffers=False):
        model = model_of_config(config, dtype)
    hollow = left_out(model)
    for block in family_of(model).blocks_of(model):
        hollow |= {id(p) for p in block.parameters()}
    for owner, name, path, parameter in _named(model):
        tensor = stored.get(stored_name(path, model.base_model_prefix, stored) or "")
        if id(parameter) in hollow:
            value = torch.zeros(1, dtype=dtype, device=device).expand(parameter.shape)
        elif tensor is None or tensor.shape != tuple(parameter.shape):
            continue  # a tied head; whatever else is missing is reported below
        else:
            value = tensor.mapped().to(device, dtype)
        owner._parameters[name] = nn.Parameter(value, requires_grad=False)
    model.tie_weights()
    missing = [path for _, _, path, parameter in _named(model) if parameter.is_meta]
    if missing:
        others = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise HoflError(
            f"{missing[0]}{others} not in the model's safetensors files, so it cannot be streamed. "
            "Get the model again or set engine.stream_bottom=false."
        )
    for owner in model.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            owner._buffers[name] = buffer.to(device)
    return model


def _named(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Parameter]]:
    """Return owner, name in it, full path and value of every parameter."""
    return [
        (owner, name, f"{path}.{name}" if path else name, parameter)
        for path, owner in model.named_modules()
        for name, parameter in owner.named_parameters(recurse=False)
    ]
