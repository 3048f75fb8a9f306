"""Which device is which client: numbers by name, written down so that a resume knows them again.

A device's name is that of its registered key; without keys (on one machine) it is the one the
device gives itself. Numbers key directions and minibatches, so they never change within a run.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from hofl.errors import HoflError
from hofl.experiment.runs import write_whole


class Registry:
    """Client numbers of a run's devices, in the file ``devices.json``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._numbers: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        except ValueError:
            raise HoflError(f"{path} is damaged: it gives devices their client numbers.") from None

    def enrol(self, names: Iterable[str]) -> None:
        """Give new names the next numbers; names that come together are numbered in order."""
        fresh = sorted(set(names) - set(self._numbers), key=_natural)
        if fresh:
            for name in fresh:
                self._numbers[name] = len(self._numbers)
            write_whole(self._path, json.dumps(self._numbers, indent=2) + "\n")

    def knows(self, name: str) -> bool:
        """Whether a device has ever joined."""
        return name in self._numbers

    def number(self, name: str) -> int:
        """The client that a device is."""
        return self._numbers[name]

    def devices(self) -> dict[int, str]:
        """The name of the device behind each client."""
        return {number: name for name, number in self._numbers.items()}

    def names(self, numbers: Iterable[int]) -> set[str]:
        """The devices that these clients are."""
        wanted = set(numbers)
        return {name for name, number in self._numbers.items() if number in wanted}


def _natural(name: str) -> list[tuple[str, int]]:
    """Device-2 comes before device-10."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", name)]
