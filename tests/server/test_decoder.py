"""The decoder under random attack: an upload of the stated types or a refusal, in little memory."""

import itertools
import json
import struct
import tracemalloc
from dataclasses import replace

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hofl.core.errors import UploadRefused
from hofl.core.packing import Packed
from hofl.core.wire import HEADER_BYTES
from hofl.messages import ClientMetrics, Upload

UPLOAD = Upload(
    run="demo-7",
    round=12,
    client=5,
    boundary=2,
    layout="0123456789abcdef",
    plan="cd" * 32,
    scalars=torch.tensor([[0.5, -1.5], [2.0, 0.25]]),
    difference=torch.linspace(-1, 1, 50),
    metrics=ClientMetrics(loss=0.7, examples=8),
    bottom_hash="ab" * 32,
)
DATA = UPLOAD.to_bytes()
LENGTH = int.from_bytes(DATA[:8], "little")
HEAD = json.loads(DATA[8 : 8 + LENGTH])
FIELDS = json.loads(HEAD["__metadata__"]["hofl"])
VECTORS = DATA[8 + LENGTH :]
# The same examples every time, and nothing written to disk.
thorough = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def decoded(data: bytes) -> Upload | None:
    """The upload, or None for a refusal; nothing else may come of it."""
    try:
        upload = Upload.from_bytes(data)
    except UploadRefused as refusal:
        reason = str(refusal)
        assert reason.isascii()
        assert len(reason) < 400
        return None
    assert_typed(upload, len(data))
    return upload


def assert_typed(upload: Upload, length: int) -> None:
    assert all(type(v) is str for v in (upload.run, upload.layout, upload.plan, upload.bottom_hash))
    assert all(type(v) is int for v in (upload.round, upload.client, upload.boundary))
    for name, value in vars(upload.metrics).items():
        assert type(value) in (int, float) or (name == "loss" and value is None)  # withheld
    sent = upload.difference
    parts = (sent.codes, sent.scales) if isinstance(sent, Packed) else (sent,)
    tensors = (upload.scalars, *parts)
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
    assert sum(tensor.nbytes for tensor in tensors) <= length


def wire(head: object, vectors: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + vectors


@thorough
@given(st.binary(max_size=400))
@example(b"")
@example(DATA)
def test_random_bytes(data: bytes) -> None:
    decoded(data)


@thorough
@given(st.integers(0, 2**64 - 1) | st.integers(0, 2 * HEADER_BYTES), st.binary(max_size=400))
def test_any_length_before_anything(length: int, data: bytes) -> None:
    assert decoded(struct.pack("<Q", length) + data) is None


places = st.integers(0, len(DATA))
edits = st.tuples(st.sampled_from(["set", "cut", "insert", "copy"]), places, places, st.binary())


@thorough
@given(st.lists(edits, min_size=1, max_size=4))
def test_mutations_of_a_valid_upload(changes: list) -> None:
    data = DATA
    for kind, first, second, new in changes:
        low, high = sorted((first % (len(data) + 1), second % (len(data) + 1)))
        if kind == "set":
            data = data[:low] + new[: len(data) - low] + data[low + len(new) :]
        elif kind == "cut":
            data = data[:low] + data[high:]
        elif kind == "insert":
            data = data[:low] + new + data[low:]
        else:
            data = data[:high] + data[low:high] + data[high:]
    decoded(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@thorough
@given(st.sampled_from(sorted(FIELDS)), anything)
def test_any_value_in_any_field(name: str, value: object) -> None:
    ours = json.dumps({**FIELDS, name: value})
    upload = decoded(wire({**HEAD, "__metadata__": {"hofl": ours}}, VECTORS))
    if upload is not None and name not in ("kind", "schema", "metrics"):
        assert getattr(upload, name) == value


@thorough
@given(st.sampled_from(sorted(FIELDS["metrics"])), anything)
def test_any_value_in_any_metric(name: str, value: object) -> None:
    metrics = {**FIELDS["metrics"], name: value}
    ours = json.dumps({**FIELDS, "metrics": metrics})
    upload = decoded(wire({**HEAD, "__metadata__": {"hofl": ours}}, VECTORS))
    if upload is not None:
        assert getattr(upload.metrics, name) == value


sizes = st.integers(-(2**63), 2**64) | st.integers(-4, 60)
claims = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", ""]),
        "shape": st.lists(sizes, max_size=4),
        "data_offsets": st.lists(sizes, min_size=2, max_size=2),
    }
)


@thorough
@given(
    st.dictionaries(
        st.sampled_from(["scalars", "difference", "codes", "scales"]), claims, max_size=3
    )
)
def test_any_claim_about_the_vectors(entries: dict) -> None:
    decoded(wire({"__metadata__": HEAD["__metadata__"], **entries}, VECTORS))


def test_claims_of_terabytes_cost_nothing() -> None:
    """Buffers made for vectors are Python objects, which tracemalloc counts."""
    shapes = ([2**40], [2**20, 2**20], [2**62, 4], [2**63, 2])
    tracemalloc.start()
    for dtype, shape in itertools.product(("F32", "F64", "U8"), shapes):
        for end in (len(VECTORS), 2**42):
            claim = {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}
            head = {"__metadata__": HEAD["__metadata__"], "scalars": claim, "difference": claim}
            assert decoded(wire(head, VECTORS)) is None
    decoded(DATA)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


@thorough
@given(
    st.integers(0, 2**40),
    st.text(max_size=64),
    st.lists(st.floats(width=32, allow_nan=False), max_size=30),
    st.tuples(st.integers(1, 6), st.integers(0, 5)),
)
def test_every_upload_comes_back_as_it_was(number: int, run: str, values: list, shape) -> None:
    scalars = torch.arange(30.0)[: shape[0] * shape[1]].view(shape)
    sent = {"scalars": scalars, "difference": torch.tensor(values)}
    upload = replace(UPLOAD, run=run, round=number, client=number % 7, **sent)
    data = upload.to_bytes()
    assert len(data) <= HEADER_BYTES + 4 * (shape[0] * shape[1] + len(values))
    back = Upload.from_bytes(data)
    assert all(torch.equal(getattr(back, name), tensor) for name, tensor in sent.items())
    assert all(getattr(back, k) == v for k, v in vars(upload).items() if k not in sent)
