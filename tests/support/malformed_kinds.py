"""Kinds of malformed upload, each made from the honest one, and how the server refuses it."""

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from hofl.core.directions import DirectionKey
from hofl.core.layout import Layout
from hofl.core.packing import pack
from hofl.core.wire import HEADER_BYTES
from hofl.messages import RoundPlan, Upload

NOT_OURS = "not a hofl message"


@dataclass(frozen=True)
class Scene:
    """What a liar has at hand.

    Args:
        plan: what was asked of it.
        data: the honest answer.
        other: the honest answer of another client to its own plan.
        layout: of the run.
        answer: computes the honest answer to any plan.
    """

    plan: RoundPlan
    data: bytes
    other: bytes
    layout: Layout
    answer: Callable[[RoundPlan], bytes]

    @cached_property
    def upload(self) -> Upload:
        """The honest answer, decoded."""
        return Upload.from_bytes(self.data)


Tamper = Callable[[Scene], bytes]


def fields(reason: str, **changes: Any) -> tuple[Tamper, str]:
    """An upload of ours with other values in it."""
    return lambda scene: replace(scene.upload, **changes).to_bytes(), reason


def vectors(name: str, change: Callable[[torch.Tensor], torch.Tensor], reason: str):
    def tamper(scene: Scene) -> bytes:
        return replace(scene.upload, **{name: change(getattr(scene.upload, name))}).to_bytes()

    return tamper, reason


def metrics(reason: str, **changes: Any) -> tuple[Tamper, str]:
    return lambda scene: replace(
        scene.upload, metrics=replace(scene.upload.metrics, **changes)
    ).to_bytes(), reason


def rewritten(change: Callable[[dict[str, Any]], None]) -> Tamper:
    """The buffer's own header changed by hand, the vectors' bytes left as they are."""

    def tamper(scene: Scene) -> bytes:
        length = int.from_bytes(scene.data[:8], "little")
        head = json.loads(scene.data[8 : 8 + length])
        change(head)
        text = json.dumps(head).encode()
        return struct.pack("<Q", len(text)) + text + scene.data[8 + length :]

    return tamper


def message(change: Callable[[dict[str, Any]], Any], reason: str) -> tuple[Tamper, str]:
    """Our own fields inside the header changed; ``change`` may return something else altogether."""

    def inside(head: dict[str, Any]) -> None:
        ours = json.loads(head["__metadata__"]["hofl"])
        other = change(ours)
        head["__metadata__"]["hofl"] = json.dumps(ours if other is None else other)

    return rewritten(inside), reason


def header(change: Callable[[dict[str, Any]], Any], reason: str) -> tuple[Tamper, str]:
    return rewritten(change), reason


def entry(name: str, reason: str = NOT_OURS, **changes: Any) -> tuple[Tamper, str]:
    return rewritten(lambda head: head[name].update(changes)), reason


def lengthened(length: int) -> Tamper:
    return lambda scene: struct.pack("<Q", length) + scene.data[8:]


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return change


def zipped(scene: Scene) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("upload", bytes(10**6))
    return file.getvalue()


def torch_saved(scene: Scene) -> bytes:
    file = io.BytesIO()
    torch.save(scene.upload.scalars, file)
    return file.getvalue()


class Bomb:
    """Pickles to a call; whoever unpickles it fails the test."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("an upload was unpickled",)


def for_other_w(scene: Scene) -> bytes:
    return scene.answer(replace(scene.plan, w=scene.plan.w + 0.01))


def raised(scene: Scene) -> bytes:
    layout, boundary = scene.layout, scene.plan.boundary + 1
    more = layout.cut(boundary) - layout.cut(scene.plan.boundary)
    cut = scene.upload.difference[more:]
    return replace(scene.upload, boundary=boundary, difference=cut).to_bytes()


def with_digest(scene: Scene, data: bytes) -> bytes:
    """An honest answer to a forged plan, relabelled as the answer to the real one."""
    mine = {
        name: getattr(scene.plan, name) for name in ("run", "round", "client", "boundary", "layout")
    }
    return replace(Upload.from_bytes(data), **mine, plan=scene.plan.digest()).to_bytes()


KINDS: dict[str, tuple[Tamper, str]] = {
    # Bytes that are not a message at all.
    "nothing": (lambda scene: b"", NOT_OURS),
    "one byte": (lambda scene: b"\0", NOT_OURS),
    "zeros": (lambda scene: bytes(len(scene.data)), NOT_OURS),
    "text": (lambda scene: b"GET / HTTP/1.1\r\n\r\n", NOT_OURS),
    "JSON": (lambda scene: json.dumps({"kind": "upload"}).encode(), NOT_OURS),
    "pickle": (lambda scene: pickle.dumps(Bomb()), NOT_OURS),
    "torch.save": (torch_saved, NOT_OURS),
    "zip bomb": (zipped, NOT_OURS),
    "gzip": (lambda scene: gzip.compress(scene.data), NOT_OURS),
    "cut in the header": (lambda scene: scene.data[:100], NOT_OURS),
    "cut in the vectors": (lambda scene: scene.data[:-4], NOT_OURS),
    "one byte more": (lambda scene: scene.data + b"\0", NOT_OURS),
    "sent twice in one": (lambda scene: scene.data * 2, NOT_OURS),
    "a thousand times as long": (lambda scene: bytes(1000 * len(scene.data)), "bytes, but an"),
    "one byte over the limit": (
        lambda scene: bytes(scene.plan.max_upload_bytes(scene.layout) + 1),
        r"\d+ bytes, but an answer to this plan has at most \d+",
    ),
    "a header of 2^63 bytes": (lengthened(2**63), f"{NOT_OURS}: a header of 9223372036854775808"),
    "a header of -1 bytes": (
        lengthened(2**64 - 1),
        f"{NOT_OURS}: a header of 18446744073709551615",
    ),
    "a header longer than the message": (lengthened(HEADER_BYTES - 8), NOT_OURS),
    "a header of nothing": (lengthened(0), NOT_OURS),
    "a long header": (
        lambda scene: struct.pack("<Q", HEADER_BYTES) + b" " * HEADER_BYTES,
        f"{NOT_OURS}: a header of {HEADER_BYTES} bytes",
    ),
    "a header without ours": header(lambda head: head.pop("__metadata__"), NOT_OURS),
    "a number for ours": header(lambda head: head.update(__metadata__={"hofl": 1}), NOT_OURS),
    # Fields.
    "a plan": (
        lambda scene: scene.plan.to_bytes(),
        r"\('plan', 3\), expected \('upload', 3\)|bytes, and",
    ),
    "a list for fields": message(lambda ours: [], NOT_OURS),
    "text for fields": message(lambda ours: "upload", NOT_OURS),
    "another kind": message(lambda ours: ours.update(kind="model"), r"'model', 3\), expected"),
    "a later schema": message(lambda ours: ours.update(schema=4), r"'upload', 4\), expected"),
    "a schema in text": message(lambda ours: ours.update(schema="3"), "expected"),
    "a schema that is true": message(lambda ours: ours.update(schema=True), "expected"),
    "no run": message(lambda ours: ours.pop("run") and None, "'run'"),
    "no metrics": message(lambda ours: ours.pop("metrics") and None, "'metrics'"),
    "an extra field": message(lambda ours: ours.update(admin=True), "'admin'"),
    "an extra metric": message(lambda ours: ours["metrics"].update(admin=1), "'admin'"),
    "metrics in a list": message(lambda ours: ours.update(metrics=[1, 2]), "must be a mapping"),
    "fields that name a method": message(lambda ours: ours.update(self=1), "'self'"),
    # Another run, round, client, plan.
    "another run": fields("run is 'other', expected", run="other"),
    "no text for the run": fields("run is None, not text", run=None),
    "a later round": fields("round is 1, expected 0", round=1),
    "a round that is false": fields("round is False, not an integer", round=False),
    "a fractional round": fields("round is 0.0, not an integer", round=0.0),
    "a replay of another round": (
        lambda scene: scene.answer(replace(scene.plan, round=5)),
        "round is 5, expected 0",
    ),
    "the answer of another client": (lambda scene: scene.other, "client is .*, expected"),
    "a client that is none": fields("client is -1, expected", client=-1),
    "a client in text": fields("client is '2', not an integer", client="2"),
    "another boundary": fields("boundary is 0, expected", boundary=0),
    "a boundary beyond the model": fields("boundary is 99, expected", boundary=99),
    "a raised boundary with the old vectors": (
        lambda scene: replace(scene.upload, boundary=scene.plan.boundary + 1).to_bytes(),
        "difference has shape",
    ),
    "a raised boundary with cut vectors": (raised, "it answers another plan"),
    "a boundary in a list": fields(r"boundary is \[1\], not an integer", boundary=[1]),
    "another layout": fields("layout is '0+', expected", layout="0" * 16),
    "another plan": fields("it answers another plan", plan="0" * 64),
    "no plan": fields("it answers another plan", plan=""),
    "a number for the plan": fields("plan is 7, not text", plan=7),
    "an answer to another model": (for_other_w, "it answers another plan"),
    "that, relabelled": (
        lambda scene: with_digest(scene, for_other_w(scene)),
        "the replayed bottom segment is not the one",
    ),
    "other directions, relabelled": (
        lambda scene: with_digest(
            scene, scene.answer(replace(scene.plan, key=DirectionKey(9, 9, 9)))
        ),
        "the replayed bottom segment is not the one",
    ),
    # Vectors.
    "no scalars": header(lambda head: head.pop("scalars"), NOT_OURS),
    "a renamed vector": header(
        lambda head: head.update(gradient=head.pop("difference")), "'difference'"
    ),
    "fewer steps": vectors("scalars", lambda s: s[:1], "scalars has shape"),
    "more directions": vectors("scalars", lambda s: torch.cat([s, s], 1), "scalars has shape"),
    "flat scalars": vectors("scalars", lambda s: s.flatten(), "scalars has shape"),
    "scalars in a cube": vectors("scalars", lambda s: s[None], "scalars has shape"),
    "scalars left out": vectors("scalars", lambda s: s[:, :0], "scalars has shape"),
    "a shorter difference": vectors("difference", lambda d: d[:-1], "difference has shape"),
    "a longer difference": vectors(
        "difference", lambda d: torch.cat([d, d[:9]]), "difference has shape"
    ),
    "an empty difference": vectors("difference", lambda d: d[:0], "difference has shape"),
    "a square difference": vectors("difference", lambda d: d.view(-1, 2), "difference has shape"),
    "float64 scalars": vectors("scalars", torch.Tensor.double, "scalars has type torch.float64"),
    "float16": vectors("difference", torch.Tensor.half, "difference has type torch.float16"),
    "bfloat16": vectors("difference", torch.Tensor.bfloat16, "has type torch.bfloat16"),
    "integers": vectors("scalars", torch.Tensor.int, "scalars has type torch.int32"),
    "truth values": vectors("difference", torch.Tensor.bool, "difference has type torch.bool"),
    "complex values": vectors("scalars", lambda s: s.to(torch.complex64), "has type torch.complex"),
    "bytes called float64": entry("difference", dtype="F64"),
    "bytes called int32": entry("difference", "has type torch.int32", dtype="I32"),
    "a type nobody knows": entry("scalars", dtype="F99"),
    "a negative shape": entry("difference", shape=[-1]),
    "a huge shape": entry("difference", shape=[2**62]),
    "a shape that overflows": entry("difference", shape=[2**40, 2**40, 0]),
    "a negative offset": entry("difference", data_offsets=[-8, 0]),
    "offsets beyond the end": entry("difference", data_offsets=[0, 2**50]),
    "offsets turned round": entry("difference", data_offsets=[100, 0]),
    "vectors that overlap": header(
        lambda head: head["scalars"].update(data_offsets=head["difference"]["data_offsets"]),
        NOT_OURS,
    ),
    "NaN among the scalars": vectors("scalars", filled(torch.nan), "scalars holds values"),
    "infinite scalars": vectors("scalars", filled(torch.inf), "scalars holds values"),
    "NaN in the difference": vectors("difference", filled(torch.nan), "difference holds values"),
    "minus infinity": vectors("difference", filled(-torch.inf), "difference holds values"),
    "a large scalar": vectors("scalars", filled(-1001.0), r"scalar is 1e\+03, limit 1e\+03"),
    "a large difference": vectors("difference", filled(101.0), "norm of the difference is 101"),
    "a difference whose square overflows": vectors(
        "difference", filled(3e38), r"norm of the difference is 3e\+38"
    ),
    "fewer bits than asked for": vectors(
        "difference",
        lambda d: pack(d, 8, np.random.default_rng(0)),
        "difference is not sent in 32 bits per value",
    ),
    # What is reported beside them.
    "a loss that is not a number": metrics("loss is nan, outside", loss=torch.nan),
    "an infinite loss": metrics("loss is inf, outside", loss=torch.inf),
    "a loss in text": metrics("loss is '0.5', not a number", loss="0.5"),
    "a loss that is null": metrics("loss is None, not a number", loss=None),
    "a loss that is true": metrics("loss is True, not a number", loss=True),
    "examples in a list": metrics(r"examples is \[4\], not an integer", examples=[4]),
    "more examples than atoms": metrics("examples is 10+, outside", examples=10**400),
    "fewer than no examples": metrics("examples is -4, outside", examples=-4),
    "negative memory": metrics("peak_bytes is -1, outside", peak_bytes=-1),
    "negative noise": metrics("noise is -0.5, outside", noise=-0.5),
    "another hash": fields("the replayed bottom segment is not the one", bottom_hash="0" * 64),
    "no hash": fields("the replayed bottom segment is not the one", bottom_hash=""),
    "a number for the hash": fields("bottom_hash is 0, not text", bottom_hash=0),
    "other scalars than hashed": vectors("scalars", lambda s: -s, "the replayed bottom segment"),
}
