"""Run a command, and end everything it started when the command or this process's parent ends.

Flower's processes watch their parents and interrupt themselves once when those are gone. An
interrupt that arrives while an object is being destroyed is ignored by Python, and such a process
stays for ever. On Linux a guard adopts whatever its descendants leave behind, so it can end all of
them, also when the process that started the guard was killed. Elsewhere it only runs the command.

>>> guarded(["sleep", "1"])[1:]
['-m', 'hofl.deploy.guard', 'sleep', '1']
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PRCTL = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command that runs another one under a guard."""
    return [sys.executable, "-m", __name__, *command]


def run(command: Sequence[str]) -> int:
    """Run a command to its end, end all that it left behind, and return its exit code."""
    parent = os.getppid()
    if _PRCTL is not None:
        _PRCTL(_PR_SET_CHILD_SUBREAPER, 1)
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)
    process = subprocess.Popen(command, preexec_fn=_die_with_guard)

    def end(number: int, _frame: FrameType | None) -> None:
        # When the parent was killed, nobody waits for an orderly end.
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(process.pid, number if os.getppid() == parent else signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    if os.getppid() != parent:  # killed before its death could be signalled
        process.kill()
    code = _exit_code(process.pid)
    # Its number is free for any other process now, and what is left has to be ended all the same.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants()
    return code if code >= 0 else 128 - code


def _exit_code(command: int) -> int:
    """Wait for the command; reap what it has left behind meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == command:
            return os.waitstatus_to_exitcode(status)


def _die_with_guard() -> None:
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_descendants() -> None:
    """Kill until nothing is left: what is being killed may still start something."""
    this = psutil.Process()
    while alive := [p for p in this.children(recursive=True) if _runs(p)]:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1.0)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
