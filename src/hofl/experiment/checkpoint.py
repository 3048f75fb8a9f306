"""The server's state in a run directory: RUN/checkpoint, the latest and a few before it.

``state.safetensors`` is the latest, replaced at once; ``state-T.safetensors`` are earlier ones.
Each holds a SHA-256 of its vectors, their names and shapes, the round and the layout.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hofl.core.durable import PARTIAL, sync_folder
from hofl.core.errors import HoflError
from hofl.experiment.runs import RunDirectory
from hofl.server.state import ServerState

_FILE = "state.safetensors"
_EARLIER = re.compile(r"state-(\d+)\.safetensors")


def save_state(run: RunDirectory, state: ServerState, layout_digest: str, keep: int = 1) -> None:
    """Write the checkpoint so that a kill leaves either the old or the new one; keep the last k."""
    folder = run.checkpoint
    folder.mkdir(exist_ok=True)
    latest, fresh = folder / _FILE, folder / (_FILE + PARTIAL)
    tensors = {**state.vectors, "w": state.w}
    fields = {"round": str(state.round), "layout": layout_digest}
    save_file(tensors, fresh, {**fields, "sha256": _digest(tensors, fields)})
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    if latest.exists() and keep > 1:
        earlier = folder / f"state-{state.round - 1}.safetensors"
        earlier.unlink(missing_ok=True)
        os.link(latest, earlier)
    os.replace(fresh, latest)
    sync_folder(folder)
    prune(run, state.round, keep)


def prune(run: RunDirectory, last: int, keep: int) -> None:
    """Remove checkpoints but the last k; a kill may have left more."""
    for number, path in _earlier(run):
        if not last - keep < number < last:
            path.unlink()


def load_state(run: RunDirectory, layout_digest: str | None = None) -> ServerState | None:
    """Return the latest checkpoint, or None before the first; without a digest, of any layout."""
    path = run.checkpoint / _FILE
    return _read(run, path, layout_digest) if path.exists() else None


def return_to(run: RunDirectory, round_number: int) -> None:
    """Make the checkpoint of an earlier round the latest; what came after it is forgotten."""
    run.check_accounted(max(sound_rounds(run), default=-1))
    latest = run.checkpoint / _FILE
    chosen = run.checkpoint / f"state-{round_number}.safetensors"
    if chosen.exists():
        _read(run, chosen, None)
        fresh = latest.with_name(_FILE + PARTIAL)
        fresh.unlink(missing_ok=True)
        os.link(chosen, fresh)
        os.replace(fresh, latest)
        sync_folder(run.checkpoint)
    elif not latest.exists() or _read(run, latest, None).round != round_number:
        kept = ", ".join(str(number) for number in sound_rounds(run)) or "none"
        raise HoflError(
            f"{run.path} has no checkpoint of round {round_number}; kept are: {kept}. "
            "server.keep sets how many."
        )
    for number, path in _earlier(run):
        if number >= round_number:
            path.unlink()
    run.reopen()


def forget_states(run: RunDirectory) -> bool:
    """Remove all checkpoints; return whether there were any."""
    files = [path for path in _all(run) if path.exists()]
    for path in files:
        path.unlink()
    return bool(files)


def forget_unsound(run: RunDirectory) -> list[str]:
    """Remove damaged checkpoints before the latest; return their names."""
    names = []
    for _, path in _earlier(run):
        try:
            _read(run, path, None)
        except HoflError:
            path.unlink()
            names.append(path.name)
    return names


def sound_rounds(run: RunDirectory) -> list[int]:
    """Return the rounds whose checkpoints are undamaged, the latest first."""
    rounds = set()
    for path in _all(run):
        try:
            rounds.add(_read(run, path, None).round)
        except (HoflError, OSError):
            continue
    return sorted(rounds, reverse=True)


def _read(run: RunDirectory, path: Path, layout_digest: str | None) -> ServerState:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 -- not a dict
            stored = dict(file.metadata())
        fields = {name: stored[name] for name in ("round", "layout")}
        # Checkpoints of earlier versions have no digest.
        damaged = stored.get("sha256", digest := _digest(tensors, fields)) != digest
        w, number = tensors.pop("w"), int(fields["round"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        damaged = True
    if damaged:
        raise HoflError(
            f"{path} is damaged. Return to the last sound checkpoint with: hofl repair {run.path}"
        )
    if layout_digest not in (None, fields["layout"]):
        raise HoflError(f"{path} belongs to a model with other trainable parameters.")
    return ServerState(w, number, tensors)


def _digest(tensors: Mapping[str, Tensor], fields: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{fields['round']} {fields['layout']}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f" {name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _earlier(run: RunDirectory) -> Iterator[tuple[int, Path]]:
    """Yield round and file of the checkpoints before the latest."""
    for path in sorted(run.checkpoint.glob("state-*.safetensors")):
        if match := _EARLIER.fullmatch(path.name):
            yield int(match[1]), path


def _all(run: RunDirectory) -> list[Path]:
    return [run.checkpoint / _FILE, *(path for _, path in _earlier(run))]
