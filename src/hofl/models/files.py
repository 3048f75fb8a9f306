"""The tensors of a checkpoint's safetensors files, read one by one.

A tensor is read into fresh memory rather than mapped: what a step holds is then what is counted,
nothing lingers in the resident set, and it is twice as fast as opening a map per block. The rest
of the file stays on disk (and, as far as there is room, in the system's page cache).
"""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import cached_file

from hofl.errors import HoflError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: ``size`` bytes at ``start`` of a file."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> Tensor:
        """The tensor in memory of its own."""
        data = torch.empty(self.size, dtype=torch.uint8)
        with self.path.open("rb") as file:
            file.seek(self.start)
            if file.readinto(data.numpy()) != self.size:  # type: ignore[arg-type]
                raise HoflError(f"{self.path} was cut short while it was in use.")
        return data.view(self.dtype).view(self.shape)

    def mapped(self) -> Tensor:
        """The tensor as a private map of the file: only pages that are used take memory."""
        page = self.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as file:
            length = self.start + self.size - page
            view = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=page)
        data = torch.frombuffer(view, dtype=torch.uint8, offset=self.start - page)
        return data.view(self.dtype).view(self.shape)


def stored_tensors(reference: str) -> dict[str, StoredTensor]:
    """All tensors of a model folder or hub id by name; empty when it has no safetensors files."""
    found: dict[str, StoredTensor] = {}
    single = _local(reference, SINGLE)
    if single is not None:
        return _tensors_in(single)
    index = _local(reference, INDEX)
    if index is not None:
        for shard in _shards(index):
            path = _local(reference, shard)
            if path is None:
                raise HoflError(f"{shard} of {reference} is missing. Get the model again.")
            found |= _tensors_in(path)
    return found


def stored_name(name: str, prefix: str, stored: Mapping[str, Any]) -> str | None:
    """A parameter's name in the files: its own, or without the prefix of the bare decoder."""
    return next((n for n in (name, name.removeprefix(f"{prefix}.")) if n in stored), None)


def _shards(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HoflError(
            f"cannot load model: {index} is not an index of safetensors files. Get the model again."
        ) from None


def _tensors_in(path: Path) -> dict[str, StoredTensor]:
    """A file's header: its length in 8 bytes, then name -> dtype, shape and place, as JSON."""
    try:
        with path.open("rb") as file:
            # In a file of another kind the length is any number; there is no more than the file.
            length = min(int.from_bytes(file.read(8), "little"), path.stat().st_size)
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {
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
    if max((t.start + t.size for t in found.values()), default=0) > path.stat().st_size:
        raise HoflError(f"cannot load model: {path} is cut short. Get the model again.")
    return found


def _local(reference: str, name: str) -> Path | None:
    found = cached_file(reference, name, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)
