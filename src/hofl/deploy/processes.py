"""Child processes that are watched, restarted and never left behind; ports and addresses."""

import ctypes
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hofl.core.errors import HoflError

GRACE = 10.0
"""Seconds that a process has to end itself before it is killed."""
LOOK_EVERY = 2.0
"""Seconds between two looks for what a process has started."""
LAST_BYTES = 2**14
"""How much of a log is searched for a process's last words."""
_PR_SET_PDEATHSIG = 1
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
# Looked up here: between fork and exec, nothing may wait for a lock that another thread held.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


class Child:
    """One process with everything it starts.

    Args:
        name: for messages.
        command: returns the words of the command; called at every start, as ports may change.
        log: file that takes its output.
        environment: its environment.
        niceness: added to that of this process.
        orphaned: signal that the kernel sends it when this process is killed (on Linux).
        grace: seconds between the request to end and the kill.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        log: Path,
        environment: Mapping[str, str],
        niceness: int = 0,
        orphaned: signal.Signals = signal.SIGKILL,
        grace: float = GRACE,
    ) -> None:
        self.name = name
        self._command, self._log, self._environment = command, log, environment
        self._niceness, self._orphaned, self._grace = niceness, orphaned, grace
        self._process: subprocess.Popen[bytes] | None = None
        self._offspring: list[psutil.Process] = []
        self._looked = 0.0
        self._asked = False
        self._log_start = 0

    def start(self) -> None:
        """Start it, after ending what an earlier one left behind."""
        self.stop()
        self._looked = 0.0
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                list(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self._environment),
                start_new_session=True,  # Ctrl-C is the parent's to handle
                preexec_fn=self._prepare,
            )

    def alive(self) -> bool:
        """Return whether it runs; also note what it has started, to end that when it is dead."""
        if self._process is None or self._process.poll() is not None:
            return False
        if time.monotonic() > self._looked + LOOK_EVERY:
            self._looked = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(self._process.pid).children(recursive=True)
                # Those seen before count while they run: a process that is being killed no longer
                # has its children, and they may hold its port.
                seen = filter(running, self._offspring)
                self._offspring = list({*seen, *children})
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def ask_to_end(self) -> None:
        """Ask it once to end, and do not wait."""
        if not self._asked:
            self._looked = 0.0
            if self.alive() and self._process is not None:
                self._asked = True
                self._process.terminate()

    def stop(self) -> None:
        """End it and all that it started: first ask, then kill."""
        self.ask_to_end()
        everyone = list(self._offspring)
        if self._process is not None and self._process.poll() is None:
            try:
                self._process.wait(self._grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for process in _still_running(everyone, 2.0):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _still_running(everyone, 2.0)
        self._process, self._offspring, self._asked = None, [], False

    def last_words(self) -> str:
        """Return the last error that it logged since its start, or its last line, in one line."""
        if not self._log.exists():
            return "it printed nothing"
        with self._log.open("rb") as log:
            log.seek(max(self._log_start, self._log.stat().st_size - LAST_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if "ERROR" in line]
        if errors:
            lines = [line.strip() for line in lines[errors[-1] :] if "INFO" not in line]
            return _COLOUR.sub("", " ".join(filter(None, lines)))[:300]
        return " ".join(lines[-1:])[-300:] or "it printed nothing"

    def _prepare(self) -> None:
        os.nice(self._niceness)
        # A shell starts background jobs with Ctrl-C ignored, children inherit that, and Flower's
        # processes interrupt themselves when their parent is gone.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if _PRCTL is not None:
            # When the parent is killed the kernel ends the child, and Flower's own processes
            # watch theirs.
            _PRCTL(_PR_SET_PDEATHSIG, self._orphaned)


def running(process: psutil.Process) -> bool:
    """Return whether a process still does anything; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return those that still run after at most so many seconds."""
    until = time.monotonic() + seconds
    while (
        left := [process for process in processes if running(process)]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def stop_all(children: Sequence[Child]) -> None:
    """End several at the same time."""
    for child in children:
        child.ask_to_end()
    for child in children:
        child.stop()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C or SIGTERM while processes are being ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Backoff:
    """Pauses between restarts: twice as long after every quick death, up to a limit."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._wait, self._next = first, 0.0

    def ready(self) -> bool:
        """Return whether the next start is due; True counts as that start."""
        now = time.monotonic()
        if now < self._next:
            return False
        if now > self._next + 2 * self._longest:
            self._wait = self._first  # it ran well for long
        self._next = now + self._wait
        self._wait = min(2 * self._wait, self._longest)
        return True


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Return whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def check_free(host: str, port: int) -> None:
    """Refuse an address that is already in use."""
    if answers(reached_at(host), port):
        raise HoflError(f"{host}:{port} is in use: choose another port with --address.")


def reached_at(host: str) -> str:
    """Return where this machine reaches what listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(host, host)


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise HoflError(f"got address {address!r}: write it as HOST:PORT, such as 127.0.0.1:9092.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether an address stays on this machine; of names, only localhost does."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
