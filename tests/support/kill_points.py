"""Every state in which a kill can leave a folder.

Python announces every opening, renaming, linking and removing of a file (audit events). At each of
them the folder is copied as it is: that is what a process leaves which ends there without any
clean-up. Where the folder has not changed since another point, there is nothing new to resume from.
A file that is opened to be written is first empty: that is one more state.
"""

import hashlib
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED = 9
CHANGES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
OTHERS = {"open", "os.listdir", "os.scandir", "os.chmod", "fcntl.flock"}


@dataclass(frozen=True)
class KillPoints:
    """Where some work can be killed.

    Args:
        count: file operations, each of which is a point.
        states: copies of the folder, one for each different content.
    """

    count: int
    states: list[Path]


def kill_points(work: Callable[[], object], folder: Path, copies: Path) -> KillPoints:
    """Do the work in a child; copy the folder before each of its file operations there."""
    copies.mkdir()
    seen: set[str] = set()

    def copy(point: int, emptied: Path | None) -> None:
        state = contents(folder)
        if state not in seen and folder.exists():
            seen.add(state)
            shutil.copytree(folder, copies / f"{point:04d}", symlinks=True)
        if emptied is not None:
            after = copies / f"{point:04d}-opened"
            shutil.copytree(folder, after, symlinks=True)
            (after / emptied.relative_to(folder)).write_bytes(b"")

    count = _watched(work, folder, copy)
    return KillPoints(count, sorted(copies.iterdir()))


def kill_at(work: Callable[[], object], folder: Path, point: int) -> None:
    """Do the work in a child that ends at the n-th of the same points, without any clean-up."""

    def end(number: int, emptied: Path | None) -> None:
        if number == point:
            os._exit(KILLED)

    _watched(work, folder, end, KILLED)


def contents(folder: Path) -> str:
    """Names and bytes of everything in a folder, as one digest."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b"a folder or a socket"
        digest.update(f"{path.relative_to(folder)} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _watched(
    work: Callable[[], object],
    folder: Path,
    at_point: Callable[[int, Path | None], None],
    ends: int = 0,
) -> int:
    """Do the work in a child, with a call before every file operation; return how many.

    The call is given the operation's number, and the file that it makes or empties.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        count, busy, inside = 0, False, str(folder)

        def point(emptied: Path | None = None) -> None:
            nonlocal count, busy
            if not busy:
                busy, count = True, count + 1
                at_point(count, emptied)
                busy = False

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            # Removals name files relative to an open folder: all changes count, wherever they are.
            if event in CHANGES or (event in OTHERS and _names(arguments, inside)):
                point(_emptied(*arguments) if event == "open" else None)

        def fsync(handle: int, to_disk: Callable[[int], None] = os.fsync) -> None:
            point()
            to_disk(handle)

        code = 1
        try:
            os.fsync = fsync  # type: ignore[assignment]  # the one change that is not announced
            sys.addaudithook(watch)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os.write(writer, str(count).encode())
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        count = int(pipe.read() or 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ends
    return count


def _emptied(path: object, _mode: object, flags: int) -> Path | None:
    """The file that an opening empties, or makes."""
    file = Path(os.fsdecode(path))  # type: ignore[arg-type]
    fresh = flags & os.O_CREAT and not file.exists()
    return file if fresh or flags & os.O_TRUNC else None


def _names(arguments: tuple[Any, ...], inside: str) -> bool:
    return any(str(word).startswith(inside) for word in arguments)
