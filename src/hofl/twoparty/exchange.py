"""Messages between the two roles, serialised as ``hofl.core.wire`` does, checked on arrival.

| kind | way | tensors |
|---|---|---|
| turn | down | keys and mean scalars of the steps to catch up with; or weights to start from |
| activation | up | z [1, tokens, D]; with labels also lengths, slots and the goal of the batch |
| feedback | down | loss, and with HO-SFL delta [1, tokens, D] |
| result | up | scalars [q], or weights |
| end | down | nothing |

A message names its step and client. One of another kind, step or client, with a tensor that is
missing, unknown, of another type or shape, or not finite, is refused with a reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hofl.core.errors import HoflError, printable
from hofl.core.wire import pack_message, unpack_message
from hofl.twoparty.ledger import ByteLedger, Category

Shape = tuple[int | None, ...]
"""Sizes by dimension; None is any."""


class MessageRefused(HoflError):
    """A message that does not belong here; nothing was changed by it."""


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        kind: what it is.
        step: t.
        client: i.
        tensors: by name.
        fields: small values by name.
    """

    kind: str
    step: int
    client: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialise."""
        header = {"step": self.step, "client": self.client, "fields": dict(self.fields)}
        return pack_message(self.kind, header, dict(self.tensors))

    @classmethod
    def from_bytes(cls, data: bytes, kind: str, step: int, client: int) -> "Message":
        """Parse a message of this kind, step and client; refuse any other."""
        header, tensors = unpack_message(kind, data, MessageRefused)
        got = header.get("step"), header.get("client")
        if got != (step, client) or any(type(value) is not int for value in got):
            shown = printable(got)
            raise MessageRefused(f"{kind} of (step, client) {shown}, expected {(step, client)}")
        fields = header.get("fields")
        if not isinstance(fields, dict):
            raise MessageRefused(f"{kind} without fields")
        return cls(kind, step, client, tensors, fields)

    def tensor(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor of this shape and type with finite values; refuse any other."""
        value = self.tensors.get(name)
        if value is None:
            raise MessageRefused(f"{self.kind} lacks {name}")
        fits = len(value.shape) == len(shape) and all(
            want is None or want == got for want, got in zip(shape, value.shape, strict=True)
        )
        if not fits or value.dtype != dtype:
            kind = str(value.dtype).removeprefix("torch.")
            raise MessageRefused(
                f"{name} is {kind} {tuple(value.shape)}, expected "
                f"{str(dtype).removeprefix('torch.')} {shape}"
            )
        if dtype.is_floating_point and not torch.isfinite(value).all():
            raise MessageRefused(f"{name} holds values that are not finite")
        return value

    def only(self, *names: str) -> None:
        """Refuse tensors beside these."""
        extra = sorted(set(self.tensors) - set(names))
        if extra:
            raise MessageRefused(f"{self.kind} has an unknown tensor {printable(extra[0])}")


def step_and_client(data: bytes, kind: str) -> tuple[int, int]:
    """Return whose turn a message of this kind announces."""
    header, _ = unpack_message(kind, data, MessageRefused)
    step, client = header.get("step"), header.get("client")
    if type(step) is not int or type(client) is not int:
        raise MessageRefused(f"{kind} without a step and a client")
    return step, client


def on_the_wire(z: Tensor) -> Tensor:
    """Return an activation or its gradient as it travels: float32, 4 bytes per value."""
    return z.detach().float().cpu().contiguous()


class Channel(Protocol):
    """The client's end of a connection: one question at a time."""

    def request(self, message: bytes) -> bytes:
        """Send a message and return the answer."""
        ...


FROM_CLIENT = ("ready", "activation", "result")
UP = {
    "z": Category.ACT_UP,
    "scalars": Category.SCALARS_UP,
    "client": Category.CLIENT_WEIGHTS_UP,
    "auxiliary": Category.AUXILIARY_WEIGHTS_UP,
}
DOWN = {
    "delta": Category.GRAD_DOWN,
    "loss": Category.LOSS_DOWN,
    "scalars": Category.SCALARS_DOWN,
    "keys": Category.SEEDS,
    "client": Category.CLIENT_WEIGHTS_DOWN,
    "auxiliary": Category.AUXILIARY_WEIGHTS_DOWN,
}


def note(ledger: ByteLedger, message: Message, data: bytes) -> None:
    """Enter a message with its bytes into the ledger."""
    table, rest = (
        (UP, Category.FRAMING_UP)
        if message.kind in FROM_CLIENT
        else (
            DOWN,
            Category.FRAMING_DOWN,
        )
    )
    sizes: dict[Category, int] = {}
    for name, tensor in message.tensors.items():
        category = table.get(name, Category.LABELS_UP)
        size = tensor.numel() * tensor.element_size()
        if size:
            sizes[category] = sizes.get(category, 0) + size
    ledger.note({**sizes, rest: len(data) - sum(sizes.values())})
