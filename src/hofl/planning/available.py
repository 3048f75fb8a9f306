"""The memory that is free on this machine now, for devices that plan by themselves."""

import re
import resource
from pathlib import Path

import torch

from hofl.errors import HoflError
from hofl.planning.sizes import parse_bytes

FREE = "free"
_CGROUP = Path("/sys/fs/cgroup")


def budget_bytes(text: str, device: torch.device | None = None) -> int:
    """A budget as people write it: an amount, or ``free`` for what this machine has left."""
    return available_bytes(device) if text.strip() == FREE else parse_bytes(text)


def available_bytes(device: torch.device | None = None) -> int:
    """Bytes that a new step may take.

    That is a GPU's free memory, or the least of what the system, a control group and the process's
    own limit leave.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = [*_system(), *_control_group(), *_process_limit()]
    if not left:
        raise HoflError("free memory cannot be read on this system: give an amount such as 4GiB.")
    return max(min(left), 1)


def held_bytes(device: torch.device | None = None) -> int:
    """Bytes that this process already has there, such as a loaded model."""
    if device is not None and device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return sum(_field(Path("/proc/self/status"), "VmRSS"))


def _system() -> list[int]:
    return _field(Path("/proc/meminfo"), "MemAvailable")


def _control_group() -> list[int]:
    """What this process's group and those around it leave; a service has one of its own."""
    try:
        own = re.search(r"^0::/(.+)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        own = None
    names = own[1].split("/") if own else []
    folders = [_CGROUP.joinpath(*names[:depth]) for depth in range(len(names) + 1)]
    return [left for folder in folders for left in _left_in(folder)]


def _left_in(group: Path) -> list[int]:
    try:
        most = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [int(most) - used] if most.isdigit() else []


def _process_limit() -> list[int]:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return []
    return [most - used for used in _field(Path("/proc/self/status"), "VmSize")]


def _field(path: Path, name: str) -> list[int]:
    """A line such as ``MemAvailable: 123 kB``; empty where there is no such file."""
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", path.read_text())
    except OSError:
        return []
    return [] if found is None else [int(found[1]) * 1024]
