"""From a device's memory to its order boundary."""

import re

import psutil

from hofl.errors import HoflError
from hofl.experiment.config import ExperimentConfig

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6}
_UNITS["GB"] = 10**9


def memory_budget(text: str) -> int:
    """Bytes of a budget such as ``4GiB``; ``auto`` is what is available now; "" is 0.

    >>> memory_budget("1.5GiB")
    1610612736
    """
    if not text:
        return 0
    if text == "auto":
        return int(psutil.virtual_memory().available)
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise HoflError(f"cannot read memory {text!r}: write it as 4GiB, 512MiB, or auto.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def boundary_within(config: ExperimentConfig, budget: int) -> int:
    """The smallest boundary whose step fits into the budget."""
    raise HoflError("boundaries are not planned from memory yet: give --boundary.")
