"""The ledger: every byte that crosses between client and server, by what it is for.

Counted are real serialised messages: the data of each tensor under its category, the rest of the
message (names, step numbers, lengths) as ``framing_up`` or ``framing_down``. A message that is
refused is ``refused_up`` as a whole: what its parts are for cannot be trusted. Not counted is what
an engine with processes adds: the call of a client, its report at the end, the words of a refusal.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Category(StrEnum):
    """What bytes are for."""

    ACT_UP = "act_up"
    LABELS_UP = "labels_up"
    GRAD_DOWN = "grad_down"
    LOSS_DOWN = "loss_down"
    SCALARS_UP = "scalars_up"
    SCALARS_DOWN = "scalars_down"
    SEEDS = "seeds"
    CLIENT_WEIGHTS_UP = "client_weights_up"
    CLIENT_WEIGHTS_DOWN = "client_weights_down"
    AUXILIARY_WEIGHTS_UP = "auxiliary_weights_up"
    AUXILIARY_WEIGHTS_DOWN = "auxiliary_weights_down"
    FRAMING_UP = "framing_up"
    FRAMING_DOWN = "framing_down"
    REFUSED_UP = "refused_up"

    @property
    def goes_up(self) -> bool:
        """Whether clients send it."""
        return self.value.endswith("_up")


@dataclass
class ByteLedger:
    """Bytes and numbers of tensors by category."""

    bytes: Counter[Category] = field(default_factory=Counter)
    counts: Counter[Category] = field(default_factory=Counter)

    def note(self, sizes: Mapping[Category, int]) -> None:
        """Take in a message: the bytes of its tensors and of what is around them."""
        for category, size in sizes.items():
            self.bytes[category] += size
            self.counts[category] += 1

    @property
    def up(self) -> int:
        """Bytes that clients sent."""
        return sum(size for category, size in self.bytes.items() if category.goes_up)

    @property
    def down(self) -> int:
        """Bytes that clients were sent."""
        return sum(self.bytes.values()) - self.up

    def add(self, other: "ByteLedger") -> None:
        """Take in another ledger."""
        self.bytes.update(other.bytes)
        self.counts.update(other.counts)

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return plain values: category -> bytes and number."""
        return {
            category.value: {"bytes": self.bytes[category], "count": self.counts[category]}
            for category in Category
            if self.bytes[category]
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, int]]) -> "ByteLedger":
        """Read :meth:`to_json`."""
        ledger = cls()
        for name, entry in values.items():
            ledger.bytes[Category(name)] = entry["bytes"]
            ledger.counts[Category(name)] = entry["count"]
        return ledger
