"""The running process: allocator, share of the cores, memory held, cache folder."""

import ctypes
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_allocator() -> None:
    """Keep freed memory for the next activation instead of returning it to the system.

    glibc maps large blocks and unmaps them when they are freed, and every fresh page faults. In
    alternating processes this made a forward pass 8 to 28 % faster with a third to a sixth of the
    page faults and no larger resident set (see docs/log.md). Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def use_threads(threads: int, workers: int = 1) -> None:
    """Give this process ``threads`` threads; 0 is an equal share of the cores among workers."""
    import torch  # not at the top: callers of the other functions need not load it

    torch.set_num_threads(threads or max(1, usable_cores() // workers))


@dataclass(frozen=True)
class Footprint:
    """What a process holds, in bytes; 0 where the system does not report it.

    Args:
        anonymous: resident private memory that no file backs.
        address_space: all that is mapped, resident or not.
    """

    anonymous: int
    address_space: int


def footprint() -> Footprint:
    """Return what this process holds now."""
    return Footprint(status_bytes("RssAnon") or 0, status_bytes("VmSize") or 0)


@cache
def footprint_before_models() -> Footprint:
    """Return what this process held when this was first called.

    Loading a model calls it first, so what has been taken since belongs to models and their steps.
    """
    return footprint()


def status_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status, such as VmRSS; None where there is none."""
    return kibibytes(Path("/proc/self/status"), field)


def kibibytes(path: Path, field: str) -> int | None:
    """Return the bytes of a line such as ``MemAvailable: 123 kB``; None without file or line."""
    try:
        match = re.search(rf"^{field}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024


def memory_left() -> Iterator[int]:
    """Yield what the system and the control groups leave in bytes; nothing where it is unknown."""
    available = kibibytes(Path("/proc/meminfo"), "MemAvailable")
    if available is None:
        available = _available_elsewhere()
    if available is not None:
        yield available
    yield from _control_groups()


def _available_elsewhere() -> int | None:
    """Return what macOS or Windows leave; None on a Linux whose /proc is hidden."""
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    except (OSError, RuntimeError):
        return None


def address_space_limit() -> int | None:
    """Return the most that this process may map, in bytes; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def _control_groups() -> Iterator[int]:
    """Yield what this process's group and those around it leave; a service has its own group."""
    try:
        match = re.search(r"^0::/(.+)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        match = None
    names = match[1].split("/") if match else []
    for depth in range(len(names) + 1):
        yield from left_in_group(_CGROUP.joinpath(*names[:depth]))


def left_in_group(group: Path) -> Iterator[int]:
    """Yield what a control group (version 2) leaves, cached files being reclaimable."""
    try:
        most = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):
        return
    cached = re.findall(r"^(?:active|inactive)_file (\d+)$", stat, re.MULTILINE)
    if most.isdigit():
        yield int(most) - used + sum(map(int, cached))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Tell whether this machine may have a GPU that PyTorch uses, without loading PyTorch."""
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, either of them under WSL
    return sys.platform == "darwin" or any(map(os.path.exists, drivers))


def end_with(parent: int) -> None:
    """Watch the process that started this one, and exit when it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


IMPORTED_AGAIN = 78
"""Exit code of a process that a script without a guard would have started all over again."""


def leave_if_imported_again() -> None:
    """End a new process that is still importing its parent's script.

    A spawned process imports the script that started it. One that starts its run outside
    ``if __name__ == "__main__":`` would start it in there again; the parent reports it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(IMPORTED_AGAIN)


def cache_dir() -> Path:
    """Return the folder of downloaded and converted files: $HOFL_CACHE, or ~/.cache/hofl."""
    return Path(os.environ.get("HOFL_CACHE", Path.home() / ".cache" / "hofl"))
