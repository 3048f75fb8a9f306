"""A device's client app that its owner has changed: it sends Flower messages that ours never makes.

``installed`` tells every Python of that device's node to start with these changes, as whoever owns
a device can. The worker names the forgery in its header; without one, the app is honest.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from hofl.deploy.flower import client_app
from hofl.deploy.flower.records import content

_START = """\
import sys
if any("flwr-clientapp" in word for word in sys.orig_argv):
    from support import hostile_app
    hostile_app.install()
"""
MALFORMED = "malformed message: "


def installed(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment of a node with the changed app."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_START)
    places = [str(folder), str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def install() -> None:
    client_app.content = forged  # type: ignore[attr-defined]


def forged(header: Any, payload: bytes = b"") -> RecordDict:
    name = header.pop("forge", "") if isinstance(header, dict) else ""
    return FORGERIES[name][0](content(header, payload)) if name else content(header, payload)


def _header(**values: Any) -> Callable[[RecordDict], RecordDict]:
    """Another header beside the honest payload."""

    def change(records: RecordDict) -> RecordDict:
        records["header"] = ConfigRecord(values)
        return records

    return change


def _payload(make: Callable[[np.ndarray], dict[str, Array]]) -> Callable[[RecordDict], RecordDict]:
    """Other arrays beside the honest header."""

    def change(records: RecordDict) -> RecordDict:
        records["payload"] = ArrayRecord(make(records["payload"]["bytes"].numpy()))
        return records

    return change


def _called_bytes(data: bytes) -> dict[str, Array]:
    return {"bytes": Array(dtype="uint8", shape=(len(data),), stype="numpy.ndarray", data=data)}


def _saved(dtype: str, shape: str, rest: bytes) -> bytes:
    """A file of NumPy's, whose own header says what it likes."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + rest


def _numbers_for_payload(records: RecordDict) -> RecordDict:
    del records["payload"]
    records["payload"] = MetricRecord({"bytes": [1, 2, 3]})
    return records


class Bomb:
    """Pickles to a call that whoever unpickles it would make."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


FORGERIES: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "no records": (lambda records: RecordDict(), MALFORMED),
    "no header": (lambda records: RecordDict({"payload": records["payload"]}), MALFORMED),
    "a header without text": (_header(text="{}"), MALFORMED + "KeyError"),
    "a header that is not JSON": (_header(json="{'name': 1}"), MALFORMED),
    "a header in bytes": (_header(json=b"{}"), MALFORMED),
    "a header in a list": (_header(json=["{}"]), MALFORMED),
    "a header nested without end": (_header(json="[" * 60_000), MALFORMED + "RecursionError"),
    "a header of a megabyte": (_header(json=" " * 2**20), MALFORMED + "the header is too long"),
    "a payload of floats": (
        _payload(lambda data: {"bytes": Array(data.astype(np.float32))}),
        MALFORMED + "the payload is 'float32', not bytes",
    ),
    "a payload in two dimensions": (
        _payload(lambda data: {"bytes": Array(data[: len(data) // 2 * 2].reshape(2, -1))}),
        MALFORMED + "the payload is 'uint8', not bytes",
    ),
    "a payload under another name": (
        _payload(lambda data: {"upload": Array(data)}),
        MALFORMED + "KeyError",
    ),
    "numbers for a payload": (_numbers_for_payload, "not a hofl message"),
    "a payload that is not an array": (_payload(lambda data: _called_bytes(b"PK")), MALFORMED),
    "a payload of pickled objects": (
        _payload(lambda data: _called_bytes(_saved("|O", "(1,)", pickle.dumps([Bomb()])))),
        MALFORMED + "Object arrays cannot be loaded",
    ),
    "a payload that says it has a petabyte": (
        _payload(lambda data: _called_bytes(_saved("|u1", f"({2**50},)", b"\0"))),
        MALFORMED,
    ),
    "a payload that says it has a gigabyte": (
        _payload(lambda data: _called_bytes(_saved("|u1", f"({2**30},)", b"\0"))),
        MALFORMED,
    ),
    "a payload whose shape is code": (
        _payload(lambda data: _called_bytes(_saved("|u1", "__import__('os')._exit(3)", b""))),
        MALFORMED,
    ),
}
"""What is made of the honest records, and how the server refuses it."""
