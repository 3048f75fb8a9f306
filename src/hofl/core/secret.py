"""The run's secret: what devices must not know of each other is derived from it, one way.

A device that knew its neighbours' direction keys could solve for their scalars from w_t and
w_{t+1}. So a plan carries the keys of its own participation alone. They are HMAC-SHA256 of the
participation's name under the run's secret: nothing about another key follows from one.
"""

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass, field
from typing import Self

from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError

SIZE = 32
"""Bytes of a secret."""
COHORT = -1
"""In place of a client: the key of directions that the whole cohort shares."""


@dataclass(frozen=True)
class RunSecret:
    """Source of all keys of a run that some party must not guess.

    >>> secret = RunSecret.from_seed(42)
    >>> secret == RunSecret.from_seed(42), secret.cohorts() == RunSecret.from_seed(43).cohorts()
    (True, False)
    """

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.value) == SIZE

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Derive a secret, so that a run can be repeated: no better kept than the seed itself."""
        return cls(_derived(b"hofl", "secret of a seed", seed))

    @classmethod
    def random(cls) -> Self:
        """Draw a secret from the operating system."""
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read :meth:`to_text`.

        Raises:
            HoflError: it is not a secret, or its checksum is wrong.
        """
        words = text.split()
        try:
            value = bytes.fromhex(words[0])
        except (IndexError, ValueError):
            value = b""
        if len(value) != SIZE or words[1:] != [_checksum(value)]:
            raise HoflError("it is not a run's secret.")
        return cls(value)

    def to_text(self) -> str:
        """Return one line: the secret in hexadecimal digits, and a checksum."""
        return f"{self.value.hex()} {_checksum(self.value)}\n"

    def directions(self, round_number: int, client: int) -> DirectionKey:
        """Return the key of one participation's directions, or with ``COHORT`` of a whole round."""
        words = _derived(self.value, "directions", round_number, client)
        return DirectionKey(*struct.unpack_from("<QQI", words))

    def draws(self, round_number: int, client: int) -> int:
        """Return the seed of one participation's own draws: minibatches, and rounding."""
        return _word(self.value, "draws", round_number, client)

    def cohorts(self) -> int:
        """Return the seed of all cohorts."""
        return _word(self.value, "cohorts")


def _derived(key: bytes, label: str, *numbers: int) -> bytes:
    """Return 32 bytes for a label and numbers; the lengths of both are fixed by the label."""
    message = label.encode() + b"\0" + struct.pack(f"<{len(numbers)}q", *numbers)
    return hmac.digest(key, message, "sha256")


def _word(key: bytes, label: str, *numbers: int) -> int:
    return int.from_bytes(_derived(key, label, *numbers)[:8], "little")


def _checksum(value: bytes) -> str:
    return hashlib.sha256(b"hofl checksum" + value).hexdigest()[:16]
