"""Amounts of memory as people write and read them."""

import re
from fractions import Fraction

from hofl.core.errors import HoflError

AUTO = "auto"
"""In place of an amount: what is free now."""
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**k for k, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**k for k, letter in enumerate("kmgt", start=1)}


def parse_bytes(text: str | int, of: str = "memory") -> int:
    """Read a number of bytes: 12GiB, 800 MiB, 2GB (1000s), 4096; ``of`` is what they are."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if match is None or match[2].lower() not in _UNITS or not Fraction(match[1]):
        raise HoflError(
            f"cannot read {text!r} as an amount of {of}: write it as 12GiB, 800MiB or 4096."
        )
    return int(Fraction(match[1]) * _UNITS[match[2].lower()])


def parse_rate(text: str) -> int:
    """Read a speed: 500MiB/s, or 500MiB.

    >>> parse_rate("2 MB/s"), parse_rate("1KiB")
    (2000000, 1024)
    """
    try:
        return parse_bytes(re.sub(r"\s*/\s*s$", "", text.strip()))
    except HoflError:
        raise HoflError(
            f"cannot read {text!r} as a speed above 0: write it as 500MiB/s or 2GB/s."
        ) from None


def parse_disk(text: str) -> int:
    """Read an amount of disk, which may be 0."""
    return 0 if text.strip() == "0" else parse_bytes(text, "disk")


def parse_uplink(text: str) -> int:
    """Read the bytes that an upload may have."""
    return parse_bytes(text, "uplink")


def show_bytes(num_bytes: float) -> str:
    """Write a byte count for people, fine enough to compare plans by: 9.17 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
