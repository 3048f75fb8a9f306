"""Frames over a socket: a small JSON header and bytes. Both ends are on one machine.

Flower starts a new process for every message and a new server process for every run. What must
live longer (the loop of rounds, a device's model) waits behind a socket, and these processes only
pass bytes on.
"""

import json
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError

Header = dict[str, Any]
_SIZES = struct.Struct("<IQ")  # length of the header, length of the payload
LONGEST_HEADER = 1 << 24
_PRIVATE = "hofl-link-"


class LinkLost(ConnectionError):
    """The other end is gone, or does not answer in time."""


class Disclosable(HoflError):
    """An error that a private device may report: its text says nothing of the device's data."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new folder for sockets, and remove it; also those that killed processes left.

    Unix sockets have short names, so it is in the system's temporary folder. Whoever uses a folder
    holds its lock: one that nobody holds was left behind.
    """
    for left in Path(tempfile.gettempdir()).glob(_PRIVATE + "*"):
        lock = _lock(left)
        if lock is not None:
            _remove(left, lock)
    folder, lock = _new_folder()
    try:
        yield folder
    finally:
        _remove(folder, lock)


def _new_folder() -> tuple[Path, int]:
    """Make a folder and lock it; in between, another start may take it for a leftover."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PRIVATE))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return a handle that locks a folder of this user; None if it is gone or in use."""
    try:
        import fcntl
    except ImportError:
        raise HoflError(
            "servers and devices talk over Unix sockets, which this system lacks: use Linux, macOS "
            "or WSL. Simulations run here (hofl run)."
        ) from None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    except BlockingIOError:
        pass
    os.close(handle)
    return None


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def listen(path: Path) -> socket.socket:
    """Return a new listening Unix socket that only this user can reach."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen(8)
    return server


def connect(path: Path) -> socket.socket:
    """Connect to a Unix socket, or raise :class:`LinkLost`."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(str(path))
    except OSError as error:
        client.close()
        raise LinkLost(f"cannot reach {path}: {error}") from None
    return client


def send(link: socket.socket, header: Header, payload: bytes = b"") -> None:
    """Send one frame."""
    text = json.dumps(header).encode()
    try:
        link.sendall(_SIZES.pack(len(text), len(payload)) + text)
        if payload:  # whoever has a whole frame may hang up: send nothing after it
            link.sendall(payload)
    except OSError as error:
        raise LinkLost(str(error)) from None


def receive(link: socket.socket) -> tuple[Header, bytes]:
    """Wait for one frame; the socket's timeout holds for every piece of it."""
    try:
        text_size, size = _SIZES.unpack(_exactly(link, _SIZES.size))
        if text_size > LONGEST_HEADER:
            raise LinkLost("not a frame")
        header = json.loads(_exactly(link, text_size))
        return header, bytes(_exactly(link, size))
    except (OSError, ValueError) as error:
        raise LinkLost(str(error)) from None


def _exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        piece = link.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise LinkLost("the other end closed the connection")
        data += piece
    return data
