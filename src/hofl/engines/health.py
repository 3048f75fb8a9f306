"""Devices that fail again and again sit out for a while, and come back.

After f failures in a row a client rests for 2^(f-2) draws, at most 8; the first failure costs
nothing, a good answer clears the count. All of it follows from the recorded rounds, so a resumed
run rests the same clients.

>>> health = Health()
>>> for _ in range(3):
...     health.note([0], [7])
>>> health.resting(), health.note([0], []), health.note([0], []), health.resting()
([7], None, None, [])
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LONGEST = 8
"""Draws that a client rests at most."""


class Health:
    """Failures in a row of every client that has any."""

    def __init__(self) -> None:
        self._draws = 0
        self._failures: dict[int, int] = {}
        self._back: dict[int, int] = {}

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Health":
        """As it was after these rounds."""
        health = cls()
        for row in rows:
            for attempt in (*row.get("repeats", ()), row):
                health.note(attempt["answered"], map(int, attempt["refused"]))
        return health

    def note(self, answered: Iterable[int], refused: Iterable[int]) -> None:
        """Take in one draw: who answered well, and who did not."""
        self._draws += 1
        for client in answered:
            self._failures.pop(client, None)
            self._back.pop(client, None)
        for client in refused:
            failures = self._failures[client] = self._failures.get(client, 0) + 1
            if failures > 1:
                self._back[client] = self._draws + min(2 ** (failures - 2), LONGEST)

    def resting(self) -> list[int]:
        """Who sits out the next draw."""
        return sorted(client for client, back in self._back.items() if back > self._draws)
