"""Answers are signed by the device that gives them; nobody else can give them in its place.

The forged answers go through Flower's real apps and messages in one process. A hostile device knows
everything but the other's private key: its node, its message, its plan.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

import hofl
from hofl.deploy.certificates import make_certificates
from hofl.deploy.flower.records import content, parts
from hofl.deploy.keys import FIELD, KeyRing, signer, statement
from hofl.experiment.build import build_server
from hofl.experiment.rounds import one_round
from hofl.messages import Upload
from support.flower_grid import LocalBridge, LocalGrid, Tamper, Tampered, local_engine
from support.flower_workers import device, serving
from support.runs import quick

NODES = {0: 5, 1: 12}
HEADER = {"name": "device-0", "boundary": 1, "seconds": 0.1}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "fleet"
    make_certificates(folder, ["127.0.0.1"], ["device-0", "device-1"])
    return folder


def key_of(tls: Path, number: int) -> Path:
    return tls / "devices" / f"device-{number}" / f"device-{number}"


def test_openssl_takes_the_signature_for_one_of_the_devices_certificate(
    tls: Path, tmp_path: Path
) -> None:
    """Another implementation, and the key in its other encoding."""
    openssl = shutil.which("openssl")
    assert openssl, "OpenSSL's command is part of every system that has certificates"
    certificate = tls / "devices" / "device-0" / "device-0.crt"
    words = [openssl, "x509", "-in", str(certificate), "-pubkey", "-noout"]
    public = subprocess.run(words, capture_output=True, check=True).stdout
    (tmp_path / "public.pem").write_bytes(public)
    (tmp_path / "statement").write_bytes(statement("m", HEADER, b"upload"))
    signature = signer(key_of(tls, 0))("m", HEADER, b"upload")
    (tmp_path / "signature").write_bytes(bytes.fromhex(signature))
    words = [
        openssl,
        "dgst",
        "-sha384",
        "-verify",
        "public.pem",
        "-signature",
        "signature",
        "statement",
    ]
    assert subprocess.run(words, cwd=tmp_path, check=False).returncode == 0


@settings(deadline=None)
@given(
    changed=st.sampled_from(["name", "message", "header", "payload", "signature", "signer"]),
    text=st.text(),
    data=st.binary(),
)
def test_a_signature_fits_nothing_else(tls: Path, changed: str, text: str, data: bytes) -> None:
    header: dict[str, Any] = dict(HEADER)
    header[FIELD] = signer(key_of(tls, 0))("message", header, b"payload")
    header = json.loads(json.dumps(header))  # as it comes over the wire
    keys = KeyRing(tls / "keys")
    keys.check("device-0", "message", header, b"payload")
    given = {"name": "device-0", "message": "message", "header": header, "payload": b"payload"}
    other = {
        "name": {"name": "device-1"},
        "message": {"message": "message" + text + "."},
        "header": {"header": {**header, "boundary": text}},
        "payload": {"payload": data + b"payload!"},
        "signature": {"header": {**header, FIELD: text}},
        "signer": {
            "header": {**header, FIELD: signer(key_of(tls, 1))("message", HEADER, b"payload")}
        },
    }[changed]
    with pytest.raises(hofl.UploadRefused, match="not signed by the key of"):
        keys.check(*{**given, **other}.values())


def test_parts_cannot_be_moved_from_one_field_to_the_next() -> None:
    apart = {statement(*parts) for parts in (("ab", {}, b"c"), ("a", {}, b"bc"), ("", {}, b"abc"))}
    assert len(apart) == 3


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> hofl.ExperimentConfig:
    fleet = {"clients": 2, "cohort": 2, "boundaries": [1, 2]}
    return quick(tiny_folder, fleet=fleet, method={"local_steps": 1})


@pytest.fixture(scope="module")
def sockets(tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Path]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        for client, node in NODES.items():
            worker = device(folder, client, client + 1, key=key_of(tls, client))
            stack.enter_context(serving(folder / str(node), worker))
        yield {node: folder / str(node) for node in NODES.values()}


def round_with(
    config: hofl.ExperimentConfig, grid: LocalGrid, folder: Path, keys: KeyRing
) -> tuple[torch.Tensor, dict[str, Any]]:
    experiment = build_server(config)
    engine = local_engine(experiment, LocalBridge(grid), folder, keys)
    state, row = one_round(experiment, engine, experiment.start, lambda *_: None)
    return state.w, row


def same(reply: Message) -> list[Message]:
    return [reply]


def forged_by(key: Path) -> Tamper:
    """Device 0's answer with its signs flipped, signed by another."""

    def tamper(reply: Message) -> list[Message]:
        header, data = parts(reply)
        upload = Upload.from_bytes(data)
        other = replace(upload, difference=-upload.difference).to_bytes()
        signature = signer(key)(reply.metadata.reply_to_message_id, header, other)
        reply.content = content({**header, FIELD: signature}, other)
        return [reply]

    return tamper


def test_one_device_cannot_answer_for_another(
    config: hofl.ExperimentConfig, sockets: dict[int, Path], tls: Path, tmp_path: Path
) -> None:
    """The forgery passes every other check: without keys it would be taken."""
    honest, row = round_with(
        config, Tampered(sockets, NODES[0], same), tmp_path, KeyRing(tls / "keys")
    )
    assert row.refused == {}
    attack = Tampered(sockets, NODES[0], forged_by(key_of(tls, 1)))
    taken, row = round_with(config, attack, tmp_path, KeyRing())
    assert row.refused == {}
    assert not torch.equal(taken, honest)
    w, row = round_with(config, attack, tmp_path, KeyRing(tls / "keys"))
    assert row.refused == {0: "the answer is not signed by the key of 'device-0'"}
    silent, _ = round_with(config, Tampered(sockets, NODES[0], unsigned), tmp_path, KeyRing())
    assert torch.equal(w, silent)


def unsigned(reply: Message) -> list[Message]:
    """Flower's own process speaks for a worker that is dead, and has no key."""
    reply.content = content({"failure": "the worker died 3 times over this message"})
    return [reply]


def test_a_dead_workers_failure_is_reported_though_nobody_could_sign_it(
    config: hofl.ExperimentConfig, sockets: dict[int, Path], tls: Path, tmp_path: Path
) -> None:
    grid = Tampered(sockets, NODES[0], unsigned)
    _, row = round_with(config, grid, tmp_path, KeyRing(tls / "keys"))
    assert row.refused == {0: "the worker died 3 times over this message"}


def test_a_device_whose_key_was_deleted_does_not_join(
    config: hofl.ExperimentConfig,
    sockets: dict[int, Path],
    tls: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server waits a day; on its clock an hour passes at every look."""
    hours = (3600.0 * hour for hour in count())
    clock = SimpleNamespace(monotonic=hours.__next__, sleep=lambda seconds: None)
    monkeypatch.setattr("hofl.deploy.engine.time", clock)
    keys, notices = tmp_path / "keys", list[str]()
    keys.mkdir()
    (keys / "device-0.pub").write_bytes((tls / "keys" / "device-0.pub").read_bytes())
    engine = local_engine(
        build_server(config),
        LocalBridge(LocalGrid(sockets)),
        tmp_path,
        KeyRing(keys),
        notices.append,
    )
    with pytest.raises(hofl.HoflError, match="1 of 2 devices joined"):
        engine.join()
    assert any("no usable key of 'device-1' is registered" in text for text in notices), notices


def test_a_device_whose_key_is_deleted_later_is_no_longer_drawn(
    config: hofl.ExperimentConfig, sockets: dict[int, Path], tls: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    shutil.copytree(tls / "keys", keys)
    engine = local_engine(
        build_server(config), LocalBridge(LocalGrid(sockets)), tmp_path, KeyRing(keys)
    )
    assert set(engine.join()) == {0, 1}
    (keys / "device-0.pub").unlink()
    assert set(engine.join()) == {1}


def test_keys_that_cannot_sign_are_refused_in_one_line(tls: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    for path in (tmp_path / "key", tmp_path / "none", tls / "keys" / "device-0.pub"):
        with pytest.raises(hofl.HoflError, match="cannot use the key"):
            signer(path)


@pytest.mark.parametrize("text", ["", "no key", "ssh-unheard-of AAAA", "ecdsa-sha2-nistp384 AAAA"])
def test_a_damaged_public_key_costs_its_device_the_answer_and_ends_nothing(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "device-0.pub").write_text(text)
    with pytest.raises(hofl.UploadRefused, match="no usable key of 'device-0'"):
        KeyRing(tmp_path).check("device-0", "message", {FIELD: "00"}, b"")
