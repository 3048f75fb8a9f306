"""Locks on open files that end with their process, on POSIX systems and on Windows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FAR = 2**30
"""Windows locks bytes, and others cannot read these: one far behind the end of any such file."""


@contextmanager
def locked(file: IO[Any], *, wait: bool = True) -> Iterator[None]:
    """Hold an open file's lock inside.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is off.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield  # closing the file ends the lock
        return
    import msvcrt

    windows: Any = msvcrt
    file.seek(_FAR)
    while True:
        try:
            windows.locking(file.fileno(), windows.LK_LOCK if wait else windows.LK_NBLCK, 1)
            break
        except OSError:  # also of LK_LOCK, after ten seconds
            if not wait:
                raise BlockingIOError("the file is locked") from None
    try:
        yield
    finally:
        file.seek(_FAR)
        windows.locking(file.fileno(), windows.LK_UNLCK, 1)
