"""Bytes to Flower's messages and back. A payload travels as one array of bytes, a header beside it.

Flower delivers replies of any shape and size as they are, so what a device sends is checked here as
a message, and by the loop of rounds as an upload.
"""

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

LONGEST_HEADER = 1 << 16
ARRAY_HEADER = 1 << 10
"""Bytes that Flower may put before an array's own."""
LARGEST = 1 << 31
"""Bytes of the largest payload that a device takes."""


def content(header: dict[str, Any], payload: bytes = b"") -> RecordDict:
    """Return the records of a message."""
    records = RecordDict({"header": ConfigRecord({"json": json.dumps(header)})})
    if payload:
        array = Array(np.frombuffer(payload, dtype=np.uint8))
        records["payload"] = ArrayRecord({"bytes": array})
    return records


def parts(message: Message, most: int = LARGEST) -> tuple[dict[str, Any], bytes]:
    """Return header and payload, of at most ``most`` bytes, of a message that anyone may have sent.

    Raises:
        ValueError: it is malformed.
    """
    try:
        records = message.content
        text = str(records.config_records["header"]["json"])
        if len(text) > LONGEST_HEADER:
            raise ValueError("the header is too long")
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
        if any(isinstance(value, dict | list) for value in header.values()):
            # Nested as deep as this process can read, it might be too deep for the next one.
            raise ValueError("the header is nested")
        if "payload" not in records.array_records:
            return header, b""
        array = records.array_records["payload"]["bytes"]
        if array.dtype != "uint8" or len(array.shape) != 1:
            raise ValueError(f"the payload is {array.dtype!r:.40}, not bytes")
        if len(array.data) > most + ARRAY_HEADER:
            raise ValueError(f"{len(array.data)} bytes, and at most {most} are allowed")
        return header, array.numpy().tobytes()
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise ValueError(f"malformed message: {reason:.200}") from None


def wire_size(message: Message) -> int:
    """Return the bytes of all objects that a message is sent as, without HTTP and TLS."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(message).values())
