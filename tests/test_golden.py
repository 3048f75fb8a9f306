"""Golden bytes of messages and golden bits of three rounds: what must not change unnoticed.

Client and server of different versions talk to each other, and a run is resumed by another version
on another processor: both need the same bytes and the same bits forever.
"""

import hashlib
import json
import os
import runpy
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hofl.core.wire import SCHEMA
from hofl.messages import RoundPlan, Upload

ROOT = Path(__file__).parents[1]
TOOL, FILE = ROOT / "tools" / "make_golden_messages.py", ROOT / "tests" / "golden" / "messages.json"
GOLDEN = json.loads(FILE.read_text())
MESSAGES = ("plan", "upload", "upload in 4 bits")
CHANGED = (
    "{} is not what {} holds: this changes the protocol, and other versions no longer understand "
    "it or rebuild other numbers. If that is meant, raise SCHEMA in core/wire.py, say so in the "
    "changelog, and run: python tools/make_golden_messages.py tests/golden/messages.json"
)
RULE = {
    "optimizer": {
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0005,
        "name": "adamw",
    },
    "local_steps": 3,
    "bottom": "zeroth-order",
    "surrogate": "linear",
    "estimator": "forward",
    "directions": {"name": "gaussian", "shared": True},
    "q": 3,
    "mu": 0.001,
    "proximal": 0.125,
    "uplink_bits": 32,
}
PLACE = {"run": "golden", "round": 7, "client": 3, "boundary": 1, "layout": "f07d510d3f1ae60c"}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What the tool makes today."""
    return runpy.run_path(str(TOOL))["golden"]()


def golden_bytes(name: str) -> bytes:
    return bytes.fromhex("".join(GOLDEN[name]))


def read_by_hand(data: bytes) -> tuple[dict[str, Any], dict[str, tuple[float, ...]]]:
    """Header and vectors of a message, by the format's description alone."""
    (length,) = struct.unpack_from("<Q", data)
    entries = json.loads(data[8 : 8 + length])
    header = json.loads(entries.pop("__metadata__")["hofl"])
    vectors = {}
    for name, entry in entries.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = {"F32": "f", "U8": "B"}[entry["dtype"]]
        vectors[name] = struct.unpack(
            f"<{(end - begin) // struct.calcsize(kind)}{kind}", data[begin:end]
        )
    return header, vectors


@pytest.mark.parametrize("name", [*MESSAGES, "plan digest"])
def test_messages_have_the_golden_bytes(name: str, made: dict[str, Any]) -> None:
    assert made[name] == GOLDEN[name], CHANGED.format(name, FILE.name)


@pytest.mark.parametrize("name", GOLDEN["rounds"])
def test_three_rounds_of_the_server_end_in_the_golden_bits(name: str, made: dict[str, Any]) -> None:
    assert made["rounds"][name] == GOLDEN["rounds"][name], CHANGED.format(name, FILE.name)
    assert made["rounds"].keys() == GOLDEN["rounds"].keys()


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_another_instruction_set_gives_the_golden_file(capability: str, tmp_path: Path) -> None:
    out = tmp_path / "messages.json"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    subprocess.run([sys.executable, str(TOOL), str(out)], check=True, env=environment)
    assert json.loads(out.read_text()) == GOLDEN, CHANGED.format(capability, FILE.name)


def test_a_golden_plan_says_what_it_should() -> None:
    header, vectors = read_by_hand(golden_bytes("plan"))
    privacy = {"noise": 0.5, "scalar_clip": 1.0, "difference_clip": 0.25}
    fields = {
        "key": [2**64 - 1, 2**63, 2**32 - 1],
        "seed": 2**63 - 1,
        "rule": RULE,
        "verify": True,
        "privacy": privacy,
    }
    assert header == {"kind": "plan", "schema": 3, **PLACE, **fields}
    for kind, (name, size) in enumerate({"w": 8, "scale": 8, "basis": 5}.items(), start=1):
        whole = ((k * 7919 + kind * 104729) % 2003 - 1001 for k in range(size))
        assert vectors[name] == tuple(number / 1024 for number in whole)
    plan = RoundPlan.from_bytes(golden_bytes("plan"))
    assert plan.to_bytes() == golden_bytes("plan")
    sent = {"w": plan.w, **plan.vectors}
    assert {name: tuple(vector.tolist()) for name, vector in sent.items()} == vectors


def test_the_golden_digest_is_of_header_and_vectors() -> None:
    header, vectors = read_by_hand(golden_bytes("plan"))
    del header["kind"], header["schema"]
    digest = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(vectors):
        size = len(vectors[name])
        digest.update(f"{name} torch.float32 ({size},)".encode())
        digest.update(struct.pack(f"<{size}f", *vectors[name]))
    assert digest.hexdigest() == GOLDEN["plan digest"]
    assert RoundPlan.from_bytes(golden_bytes("plan")).digest() == GOLDEN["plan digest"]


@pytest.mark.parametrize("name", ["upload", "upload in 4 bits"])
def test_a_golden_upload_says_what_it_should(name: str) -> None:
    header, vectors = read_by_hand(golden_bytes(name))
    metrics = {"loss": 1.25, "examples": 40, "checks": 1, "signal": 0.5, "noise": 0.001}
    metrics["peak_bytes"] = 2**40
    kind = {"kind": "upload", "schema": 3, "bottom_hash": "ab" * 32, "metrics": metrics}
    assert {**header, "plan": ""} == {**kind, **PLACE, "plan": ""}
    dense = {"difference": 2} if name == "upload" else {"codes": 1, "scales": 1}
    assert {key: len(values) for key, values in vectors.items()} == {"scalars": 9, **dense}
    upload = Upload.from_bytes(golden_bytes(name))
    assert upload.to_bytes() == golden_bytes(name)
    assert tuple(upload.scalars.view(-1).tolist()) == vectors["scalars"]
    if name == "upload":
        assert header["plan"] == GOLDEN["plan digest"]
        assert tuple(upload.difference.tolist()) == vectors["difference"]


def test_the_schema_is_that_of_the_golden_messages() -> None:
    for name in MESSAGES:
        assert read_by_hand(golden_bytes(name))[0]["schema"] == SCHEMA
