"""Ctrl-C and SIGTERM: a stop is one line, and it is never lost.

An exception that a signal handler raises can vanish: inside a destructor, a callback of a weak
reference (the import system has many) or a library's bare ``except`` it ends nothing. So the
handler also leaves a mark, and ``check`` raises again at points where stopping is safe.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_requested = False


def install() -> None:
    """Turn Ctrl-C and SIGTERM into stops, unless whoever started this process has them ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _request)
    before = sys.unraisablehook

    def report(ignored: Any) -> None:
        # What a destructor has swallowed is not lost if it is a stop: no traceback for it.
        if ignored.exc_type is not KeyboardInterrupt:
            before(ignored)

    sys.unraisablehook = report


def check() -> None:
    """Raise KeyboardInterrupt if a stop was requested, however long ago."""
    if _requested:
        raise KeyboardInterrupt


def load(module: str) -> None:
    """Import what takes seconds, and stop afterwards if that was requested meanwhile."""
    import_module(module)
    check()


@contextmanager
def stoppable(
    console: "Console",
    path: Path,
    command: str,
    first: str = "config.toml",
    option: str = "--resume",
) -> Iterator[None]:
    """Let a stop inside end the command cleanly and say how to resume.

    Args:
        console: where to say it.
        path: folder of the work.
        command: what resumes it, followed by ``option`` and the folder.
        first: the file that is in the folder as soon as there is something to resume.
        option: see ``command``.
    """
    try:
        yield
    except KeyboardInterrupt:
        import typer

        started = (path / first).is_file()
        hint = f"resume with: {command} {option} {path}" if started else "nothing was written"
        console.print(f"stopped; {hint}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def _request(_number: int, _frame: Any) -> None:
    global _requested
    _requested = True
    raise KeyboardInterrupt
