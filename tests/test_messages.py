"""Messages: round trips, measured sizes, and bytes from strangers."""

import json
import random
import struct
from dataclasses import fields, replace
from math import prod

import pytest
import torch

from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError, PlanRefused, UploadRefused
from hofl.core.layout import Layout
from hofl.core.optim import SGD, AdamW
from hofl.core.privacy import Privacy
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.rules import LocalRule

PLACE = {"run": "demo-7", "round": 12, "client": 5, "boundary": 2, "layout": "0123456789abcdef"}
METRICS = {"loss": 0.1, "examples": 40, "signal": 1 / 3, "noise": 1e-9, "peak_bytes": 2**40}
PLAN = RoundPlan(
    **PLACE,
    key=DirectionKey(2**64 - 1, 2**63, 2**32 - 1),
    seed=2**64 - 1,
    rule=LocalRule(optimizer=AdamW(lr=0.1 + 0.2)),
    w=torch.randn(77, generator=torch.Generator().manual_seed(0)),
)
OTHER_RULE = LocalRule(
    optimizer=SGD(lr=1e-3, weight_decay=1 / 3),
    local_steps=9,
    bottom="recompute",
    surrogate="linear",
    estimator="central",
    directions={"name": "gaussian", "shared": True},
    q=7,
    mu=1 / 7,
    proximal=1e-3,
)
UPLOAD = Upload(
    **PLACE,
    plan="cd" * 32,
    scalars=torch.tensor([[0.1, -0.0], [3e38, 1e-45]]),
    difference=torch.tensor([1 / 3, -2.5, 1e-40]),
    metrics=ClientMetrics(**METRICS),
    bottom_hash="ab" * 32,
)
# The same written by hand, for messages that no code of ours would write.
HEADER = {
    "kind": "upload",
    "schema": 3,
    **PLACE,
    "plan": "cd" * 32,
    "bottom_hash": "",
    "metrics": METRICS,
}
TENSORS = {"scalars": [2, 1], "difference": [3]}


def same(left: object, right: object) -> bool:
    """Equal in every field, tensors bit for bit."""
    assert type(left) is type(right)
    pairs = [(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)]
    return all(equal(a, b) for a, b in pairs)


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def wire(header: object, tensors: dict[str, list[int]]) -> bytes:
    """A safetensors buffer of zeros made by hand; ``header`` may be text that is not JSON."""
    text = header if isinstance(header, str) else json.dumps(header)
    entries, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps({"__metadata__": {"hofl": text}, **entries}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(end)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, rule=OTHER_RULE, verify=True, seed=0),
        replace(PLAN, vectors={"scale": torch.rand(77), "a": torch.arange(3.0)}),
        replace(PLAN, w=torch.arange(20.0)[::3]),
        replace(PLAN, w=torch.zeros(0)),
        replace(PLAN, privacy=Privacy(noise=1 / 3, scalar_clip=0.1, difference_clip=2.0)),
    ],
    ids=["plain", "every field", "vectors", "strided", "empty", "private"],
)
def test_plan_survives_the_wire(plan: RoundPlan):
    assert same(RoundPlan.from_bytes(plan.to_bytes()), plan)


def test_a_vector_cannot_take_the_name_of_w():
    """Otherwise the client never gets it, and both sides draw other directions."""
    with pytest.raises(HoflError, match="cannot be called 'w'"):
        replace(PLAN, vectors={"w": torch.ones(77)})


def test_the_digest_is_of_shapes_and_types_too():
    """The same bytes in another shape or type are other vectors."""
    kept = torch.arange(6.0)
    others = [kept, kept.view(2, 3), kept.view(torch.int32), kept.view(3, 2)]
    assert len({replace(PLAN, vectors={"a": vector}).digest() for vector in others}) == 4


def test_a_plan_carries_the_key_of_its_directions():
    received = RoundPlan.from_bytes(PLAN.to_bytes())
    assert received.directions(Layout((), (), (), 0)).key == PLAN.key


@pytest.mark.parametrize(
    "upload",
    [
        UPLOAD,
        replace(UPLOAD, scalars=torch.zeros(5, 0), bottom_hash=""),
        replace(UPLOAD, difference=torch.zeros(0)),
        replace(UPLOAD, run='Übung \u2028 "quoted"', scalars=torch.ones(6, 3)[::2]),
        replace(UPLOAD, difference=torch.tensor([float("nan"), float("-inf")])),
    ],
    ids=["plain", "no scalars", "no difference", "odd text", "not finite"],
)
def test_upload_survives_the_wire(upload: Upload):
    assert same(Upload.from_bytes(upload.to_bytes()), upload)


@pytest.mark.parametrize("steps", [1, 5, 50])
@pytest.mark.parametrize("q", [0, 1, 2, 16])
@pytest.mark.parametrize("top", [0, 1, 1000, 250_000])
def test_uplink_costs_four_bytes_per_number_and_little_else(steps: int, q: int, top: int):
    upload = replace(
        UPLOAD, run="a" * 64, scalars=torch.zeros(steps, q), difference=torch.zeros(top)
    )
    numbers = steps * q + top
    assert 4 * numbers <= len(upload.to_bytes()) <= 1.02 * 4 * numbers + 2048


def test_hand_made_message_is_accepted():
    upload = Upload.from_bytes(wire(HEADER, TENSORS))
    zeros = {"scalars": torch.zeros(2, 1), "difference": torch.zeros(3)}
    assert same(upload, replace(UPLOAD, **zeros, bottom_hash=""))


def test_every_truncation_is_refused():
    data = UPLOAD.to_bytes()
    for length in range(len(data)):
        with pytest.raises(UploadRefused):
            Upload.from_bytes(data[:length])


def test_flipped_bytes_give_an_upload_or_a_refusal_and_nothing_else():
    rng, data, refused = random.Random(11), UPLOAD.to_bytes(), 0
    for _ in range(4000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(data))] = rng.choice([rng.randrange(256), *b'{}[]":,019-.e'])
        try:
            upload = Upload.from_bytes(bytes(damaged))
        except UploadRefused:
            refused += 1
        else:
            assert isinstance(upload.scalars, torch.Tensor)
            assert isinstance(upload.difference, torch.Tensor)
    assert 1000 < refused < 4000, "the damage must hit both the header and the numbers"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        bytes(8),
        bytes(1000),
        b"\xff" * 1000,
        b"not a message at all",
        b"{}",
        UPLOAD.to_bytes() + b"\0",
        *(struct.pack("<Q", n) + UPLOAD.to_bytes()[8:] for n in (0, 1, 2**31, 2**63, 2**64 - 1)),
    ],
)
def test_garbage_is_refused(data: bytes):
    with pytest.raises(UploadRefused, match="not a hofl message"):
        Upload.from_bytes(data)


@pytest.mark.parametrize(
    "header",
    ["", "null", "[]", "7", '"upload"', "{", "NaN", "1" * 5000, "[" * 100_000],
    ids=lambda text: text[:8],
)
def test_header_that_is_no_object_is_refused(header: str):
    with pytest.raises(UploadRefused, match="not a hofl message"):
        Upload.from_bytes(wire(header, TENSORS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "plan"}, "'plan', 3.*expected .*'upload', 3"),
        ({"kind": ["upload"]}, "expected .*'upload', 3"),
        ({"schema": 1}, "'upload', 1.*expected .*'upload', 3"),
        ({"schema": "3"}, "expected .*'upload', 3"),
        ({"metrics": {"loss": 1.0}}, "'examples'"),
        ({"metrics": {**METRICS, "more": 1}}, "'more'"),
        *(({"metrics": value}, "must be a mapping") for value in (None, [], "x", 3)),
        *(({key: 1}, f"'{key}'") for key in ("more", "self", "scalars")),
    ],
)
def test_wrong_or_extra_field_is_refused_by_name(changes: dict, message: str):
    with pytest.raises(UploadRefused, match=message):
        Upload.from_bytes(wire({**HEADER, **changes}, TENSORS))


@pytest.mark.parametrize("name", [key for key in HEADER if key != "bottom_hash"])
def test_missing_field_is_refused_by_name(name: str):
    header = {key: value for key, value in HEADER.items() if key != name}
    with pytest.raises(UploadRefused, match=f"'{name}'"):
        Upload.from_bytes(wire(header, TENSORS))


@pytest.mark.parametrize("name", ["scalars", "difference"])
def test_missing_tensor_is_refused_by_name(name: str):
    tensors = {key: shape for key, shape in TENSORS.items() if key != name}
    with pytest.raises(UploadRefused, match=f"'{name}'"):
        Upload.from_bytes(wire(HEADER, tensors))


def test_extra_tensor_is_refused():
    with pytest.raises(UploadRefused):
        Upload.from_bytes(wire(HEADER, {**TENSORS, "more": [1]}))


def test_plan_is_not_taken_for_an_upload():
    with pytest.raises(UploadRefused, match="'plan'"):
        Upload.from_bytes(PLAN.to_bytes())


def test_shape_that_overflows_is_refused():
    with pytest.raises(UploadRefused):
        Upload.from_bytes(wire(HEADER, {"scalars": [2, 1], "difference": [0, 2**40, 2**40]}))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "demo-8"},
        {"round": 13},
        {"client": 6},
        {"boundary": 1},
        {"key": DirectionKey(2**64 - 1, 2**63, 0)},
        {"seed": 0},
        {"layout": "f" * 16},
        {"rule": OTHER_RULE},
        {"rule": replace(PLAN.rule, optimizer=AdamW(lr=0.3))},
        {"w": PLAN.w.flip(0)},
        {"w": torch.nextafter(PLAN.w, torch.tensor(9.0))},
        {"w": PLAN.w[:-1]},
        {"vectors": {"scale": torch.ones(77)}},
        {"verify": True},
        {"privacy": Privacy(noise=1.0, scalar_clip=1.0, difference_clip=1.0)},
        {"start": "a" * 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_digest_is_of_everything_a_plan_says(changes: dict):
    other = replace(PLAN, **changes)
    assert other.digest() != PLAN.digest()
    assert RoundPlan.from_bytes(other.to_bytes()).digest() == other.digest()
    assert len(PLAN.digest()) == 64


def test_every_field_of_a_plan_is_in_the_digest():
    """A field that is added has to be added above, too."""
    names = {"run", "round", "client", "boundary", "key", "seed", "layout", "rule", "w"}
    names |= {"vectors", "verify", "privacy", "start"}
    assert {field.name for field in fields(RoundPlan)} == names


@pytest.mark.parametrize("data", [b"", b"x" * 40, UPLOAD.to_bytes(), PLAN.to_bytes()[:-4]])
def test_what_is_not_a_plan_is_refused_as_a_plan(data: bytes) -> None:
    """A device says that it refuses a plan, never that it refuses an upload."""
    with pytest.raises(PlanRefused):
        RoundPlan.from_bytes(data)
