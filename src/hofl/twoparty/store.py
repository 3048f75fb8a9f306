"""Checkpoints of both roles: a kill at any time leaves the last whole one."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load, save
from torch import Tensor

from hofl.core.durable import PARTIAL, sync_folder
from hofl.core.errors import HoflError
from hofl.experiment.launch import SPLIT_STATE
from hofl.twoparty.segment import Segment

if TYPE_CHECKING:
    from hofl.twoparty.server import SplitServer

DIGEST = 32
"""Bytes of the SHA-256 before the tensors."""


class ClientStore:
    """States of clients: the steps whose scalars they have taken, w and moments.

    Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def save(self, client: int, held: int, bottom: Segment) -> None:
        """Write a client's state."""
        if self._folder is not None:
            _write(self._path(client), bottom.tensors(), {"held": held})

    def load(self, client: int) -> tuple[int, Segment] | None:
        """Return a client's state; None where it has none."""
        if self._folder is None or not self._path(client).exists():
            return None
        tensors, facts = _read(self._path(client))
        return int(facts["held"]), Segment.from_tensors(tensors)

    def _path(self, client: int) -> Path:
        assert self._folder is not None
        return self._folder / f"client-{client}.state"


def save_server(folder: Path, server: "SplitServer") -> None:
    """Write the server's state after a step."""
    tensors = {**server.top.tensors(), "kept": server.kept}
    _write(
        folder / SPLIT_STATE, tensors, {"step": server.step, "layout": server.model.layout.digest}
    )


def load_server(folder: Path, server: "SplitServer") -> None:
    """Bring a server to its last state, if there is one.

    Raises:
        HoflError: the state is damaged, or belongs to another model.
    """
    path = folder / SPLIT_STATE
    if not path.exists():
        return
    tensors, facts = _read(path)
    kept, digest = tensors.pop("kept"), server.model.layout.digest
    if facts["layout"] != digest:
        raise HoflError(f"{path} is of layout {facts['layout']}, and the model's is {digest}.")
    server.kept, server.step = kept, facts["step"]
    server.top = Segment.from_tensors(tensors)


def _write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    data = save(whole, {"hofl": json.dumps(facts)})
    fresh = path.with_name(path.name + PARTIAL)
    with fresh.open("wb") as file:
        file.write(hashlib.sha256(data).digest() + data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    whole = path.read_bytes()
    digest, data = whole[:DIGEST], whole[DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        raise HoflError(
            f"{path} is damaged. Restore it from a backup, or start again with another --out."
        )
    length = int.from_bytes(data[:8], "little")
    return load(data), json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["hofl"])
