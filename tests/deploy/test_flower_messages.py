"""The translation to Flower's messages, with its real apps in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import hofl
from hofl.deploy.flower.records import content, parts
from hofl.deploy.roster import Registry
from hofl.experiment.build import build_server
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import device, serving
from support.runs import adapter_bytes, quick


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> hofl.ExperimentConfig:
    return quick(tiny_folder, fleet={"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]})


@pytest.fixture(scope="module")
def expected(config: hofl.ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return adapter_bytes(hofl.run(config, tmp_path_factory.mktemp("in-process") / "run").path)


def test_a_run_over_flowers_messages_ends_in_the_same_bits(
    config: hofl.ExperimentConfig, expected: bytes, tmp_path: Path
) -> None:
    experiment = build_server(config)
    # Nodes in another order than the names: numbers follow the names.
    sockets = {77: tmp_path / "c", 5: tmp_path / "a", 12: tmp_path / "b"}
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    with (
        serving(sockets[5], device(tmp_path, 0, 1)),
        serving(sockets[12], device(tmp_path, 1, 2)),
        serving(sockets[77], device(tmp_path, 2, 3)),
    ):
        engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path)
        summary = run_rounds(experiment, engine, directory, lambda *_: None)
    assert adapter_bytes(directory.path) == expected
    assert summary.wire["plan"] == summary.downlink_bytes
    assert summary.wire["upload"] == summary.uplink_bytes
    sent = sum(sizes["up"] for row in directory.metrics()[1:] for sizes in row.wire.values())
    assert summary.wire["up"] == sent
    for row in directory.metrics()[1:]:
        assert row.refused == {}
        assert row.present == {0: 1, 1: 2, 2: 3}
        assert set(row.wire) == set(row.cohort)
        assert sum(sizes["plan"] for sizes in row.wire.values()) == row.downlink_bytes
        assert sum(sizes["upload"] for sizes in row.wire.values()) == row.uplink_bytes
        for sizes in row.wire.values():
            assert sizes["plan"] < sizes["down"] < sizes["plan"] + 4096
            assert sizes["upload"] < sizes["up"] < sizes["upload"] + 4096


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"header": ConfigRecord({"json": "no json"})},
        {"header": ConfigRecord({"json": "[1]"})},
        {"header": ConfigRecord({"other": "{}"})},
        {
            "header": ConfigRecord({"json": "{}"}),
            "payload": ArrayRecord({"bytes": Array(np.zeros(3))}),
        },
        {
            "header": ConfigRecord({"json": "{}"}),
            "payload": ArrayRecord({"other": Array(np.zeros(3, np.uint8))}),
        },
        {
            "header": ConfigRecord({"json": "{}"}),
            "payload": ArrayRecord({"bytes": Array("uint8", (3,), "pickle", b"\x80\x04K\x01.")}),
        },
    ],
)
def test_records_of_another_form_are_refused(records: dict[str, Any]) -> None:
    message = Message(RecordDict(records), 1, "train")
    with pytest.raises(ValueError, match="malformed message"):
        parts(message)


def test_header_and_payload_come_back_as_they_were() -> None:
    header = {"failure": "no", "boundary": 3}
    payload = bytes(range(256)) * 5
    assert parts(Message(content(header, payload), 1, "train")) == (header, payload)
    assert parts(Message(content(header), 1, "train")) == (header, b"")


def test_numbers_follow_names_and_never_change(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "devices.json")
    registry.enrol(["device-10", "device-2"])
    registry.enrol(["device-1", "device-2"])
    again = Registry(tmp_path / "devices.json")
    names = ("device-2", "device-10", "device-1")
    assert [again.number(name) for name in names] == [0, 1, 2]
    assert again.names([2, 7]) == {"device-1"}
