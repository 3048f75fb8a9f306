"""The translation to Flower's messages, with its real apps in one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import hofl
from flower_grid import LocalBridge, LocalGrid, local_engine
from flower_workers import device, serving
from hofl.engines.flower.records import content, parts
from hofl.engines.network.registry import Registry
from hofl.engines.rounds import run_rounds
from hofl.experiment.config import PrivacyConfig
from hofl.experiment.remote import build_server
from hofl.experiment.runs import RunDirectory, config_text
from runs import adapter_bytes, quick


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
    directory = RunDirectory.create(tmp_path / "run", experiment.config)
    with (
        serving(sockets[5], device(tmp_path, 0, 1)),
        serving(sockets[12], device(tmp_path, 1, 2)),
        serving(sockets[77], device(tmp_path, 2, 3)),
    ):
        engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path)
        summary = run_rounds(experiment, engine, directory, lambda *_: None)
    assert adapter_bytes(directory.path) == expected
    assert summary["wire"]["plan"] == summary["downlink_bytes"]
    assert summary["wire"]["upload"] == summary["uplink_bytes"]
    sent = sum(one["up"] for row in directory.metrics()[1:] for one in row["wire"].values())
    assert summary["wire"]["up"] == sent
    for row in directory.metrics()[1:]:
        assert row["refused"] == {}
        assert row["present"] == {"0": 1, "1": 2, "2": 3}
        assert set(row["wire"]) == {str(client) for client in row["cohort"]}
        assert sum(one["plan"] for one in row["wire"].values()) == row["downlink_bytes"]
        assert sum(one["upload"] for one in row["wire"].values()) == row["uplink_bytes"]
        for one in row["wire"].values():
            assert one["plan"] < one["down"] < one["plan"] + 4096
            assert one["upload"] < one["up"] < one["upload"] + 4096


def test_a_device_refuses_a_plan_below_its_boundary_and_says_what_it_can_do(
    config: hofl.ExperimentConfig, tmp_path: Path
) -> None:
    experiment = build_server(config)
    worker = device(tmp_path, 0, 2)
    said, _ = worker.answer({"kind": "join"}, config_text(experiment.config).encode())
    assert said["boundary"] == 2
    assert said["examples"] == 160
    present = experiment.present(0, {0: 1})
    plan = experiment.plan(0, 0, experiment.start, present).to_bytes()
    said, upload = worker.answer({"kind": "plan"}, plan)
    assert "needs more memory" in said["failure"]
    assert said["boundary"] == 2
    assert upload == b""


def test_a_device_insists_on_its_noise_and_hides_how_much_data_it_holds(
    tiny_folder: Path, tmp_path: Path
) -> None:
    private = quick(
        tiny_folder,
        fleet={"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]},
        privacy={"noise": 2.0, "scalar_clip": 0.5, "difference_clip": 0.1},
    )
    experiment = build_server(private)
    plan = experiment.plan(0, 0, experiment.start, experiment.present(0, {0: 1}))
    offer = config_text(experiment.config).encode()
    for least, refused in ((0.0, False), (2.0, False), (2.1, True)):
        worker = device(tmp_path, 0, 1, min_noise=least)
        assert worker.answer({"kind": "join"}, offer)[0]["examples"] == 1
        said, upload = worker.answer({"kind": "plan"}, plan.to_bytes())
        assert ("noise 2, and this device" in said.get("failure", "")) is refused
        assert (upload == b"") is refused
        assert "seconds" not in said
    said, upload = worker.answer({"kind": "plan"}, replace(plan, privacy=None).to_bytes())
    assert "noise 0" in said["failure"]
    assert upload == b""
    open_to_all = experiment.config.model_copy(update={"privacy": PrivacyConfig()})
    said, _ = worker.answer({"kind": "join"}, config_text(open_to_all).encode())
    assert said["examples"] == 1, "a server that asks for no noise learns no more"


def test_a_restarted_worker_knows_its_run_again(
    config: hofl.ExperimentConfig, tmp_path: Path
) -> None:
    experiment = build_server(config)
    first = device(tmp_path, 0, 1)
    first.answer({"kind": "join"}, config_text(experiment.config).encode())
    plan = experiment.plan(0, 0, experiment.start, experiment.present(0, {0: 1})).to_bytes()
    _, upload = first.answer({"kind": "plan"}, plan)
    header, again = device(tmp_path, 0, 1).answer({"kind": "plan"}, plan)
    assert "failure" not in header
    assert again == upload


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
