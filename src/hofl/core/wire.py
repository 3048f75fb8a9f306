"""The wire format: one ``safetensors`` buffer of flat vectors, with the small fields as JSON.

Reading never executes anything and never trusts a length.
"""

import json
from typing import Any

import safetensors
from safetensors.torch import load, save
from torch import Tensor

from hofl.core.errors import HoflError, printable

SCHEMA = 3
HEADER_BYTES = 4096
"""Limit on the bytes of a message beside its vectors, the length field included."""
# What readers raise on hostile bytes; RuntimeError covers overflowing shapes and deep nesting.
_UNREADABLE = (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
)


def pack_message(kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Serialise fields and vectors.

    Raises:
        HoflError: the fields are too long for a header.
    """
    text = json.dumps({"kind": kind, "schema": SCHEMA, **header}, separators=(",", ":"))
    data = save({k: v.contiguous().cpu() for k, v in tensors.items()}, metadata={"hofl": text})
    length = 8 + int.from_bytes(data[:8], "little")
    if length > HEADER_BYTES:
        raise HoflError(
            f"the header of a {kind} has {length} bytes, at most {HEADER_BYTES} are allowed: "
            "give the method's parts fewer or shorter options."
        )
    return data


def unpack_message(
    kind: str, data: bytes, refusal: type[HoflError]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return fields and vectors; refuse everything that is not a message of this kind."""
    length = int.from_bytes(data[:8], "little")
    if 8 + length > HEADER_BYTES:
        raise refusal(f"not a hofl message: a header of {length} bytes")
    try:
        tensors = load(data)
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["hofl"])
        received = header.pop("kind"), header.pop("schema")
    except _UNREADABLE as error:
        raise refusal(f"not a hofl message: {printable(error)}") from None
    if received != (kind, SCHEMA) or type(received[1]) is not int:
        shown = printable(received)
        raise refusal(f"got message {shown}, expected {(kind, SCHEMA)}: update both sides.")
    return header, {name: tensor.clone() for name, tensor in tensors.items()}


def message_kind(data: bytes, refusal: type[HoflError]) -> str:
    """Return what kind of message it says it is, without reading its vectors."""
    length = int.from_bytes(data[:8], "little")
    if 8 + length > min(HEADER_BYTES, len(data)):
        raise refusal(f"not a hofl message: a header of {length} bytes")
    try:
        kind = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["hofl"])["kind"]
    except _UNREADABLE as error:
        raise refusal(f"not a hofl message: {printable(error)}") from None
    return kind if isinstance(kind, str) else ""


def check_types(message: object, kind: type, names: str, refusal: type[HoflError]) -> None:
    """Refuse decoded fields of another type than declared: JSON can hold anything."""
    word = {str: "text", int: "an integer", bool: "true or false"}[kind]
    for name in names.split():
        value = getattr(message, name)
        if type(value) is not kind:  # refuses True, a subclass of int
            raise refusal(f"{name} is {printable(repr(value))}, not {word}")
