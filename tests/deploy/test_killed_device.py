"""A device that is killed at any file operation comes back to the same answers, and cleans up."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from hofl.deploy.device import Enrolment, WorkerSettings
from hofl.deploy.link import private_folder
from hofl.deploy.worker import Worker
from hofl.engines.base import DeviceOffer
from hofl.experiment.build import build_server
from hofl.experiment.runs import config_text
from hofl.messages import Upload
from support.in_process import NAME
from support.kill_points import kill_at, kill_points
from support.runs import quick

ROUNDS = 3


@pytest.fixture(scope="module")
def requests(tiny_folder: Path) -> list[tuple[str, bytes]]:
    """What a server asks one device: to join, and a plan for each round."""
    fleet = {"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]}
    server = build_server(quick(tiny_folder, fleet=fleet, method={"local_steps": 1}))
    present = server.present(0, {0: DeviceOffer(1)})
    states = [replace(server.start, round=number) for number in range(ROUNDS)]
    plans = [server.plan(state, 0, present).to_bytes() for state in states]
    return [("join", config_text(server.config).encode()), *(("plan", plan) for plan in plans)]


def converse(folder: Path, requests: Sequence[tuple[str, bytes]]) -> list[Upload]:
    """Answer what has not been answered yet; the last request is repeated, as a node does."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    worker = Worker(
        WorkerSettings(
            name="kitchen",
            run_config=str(home / "run.toml"),
            ledger=str(home / "ledger.json"),
            shard=0,
            boundary=1,
            device="cpu",
            threads=1,
        )
    )
    uploads = []
    first = max(0, len(list(folder.glob("asked-*"))) - 1)
    for number, (kind, payload) in list(enumerate(requests))[first:]:
        (folder / f"asked-{number}").mkdir(exist_ok=True)
        reply, upload = worker.answer({"kind": kind, "message": str(number)}, payload)
        assert "failure" not in reply
        if kind == "plan":
            uploads.append(Upload.from_bytes(upload))
    return uploads


def test_a_worker_killed_at_any_point_answers_with_the_same_bits(
    requests: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    whole = converse(tmp_path / "whole", requests)
    work = tmp_path / "work"
    points = kill_points(lambda: converse(work, requests), work, tmp_path / "states")
    assert points.count > 25
    assert len(points.states) > 10
    for state in points.states:
        uploads = converse(state, requests)
        for before, after in zip(whole[-len(uploads) :], uploads, strict=True):
            assert after.plan == before.plan
            assert torch.equal(after.scalars, before.scalars)
            assert torch.equal(after.difference, before.difference)
        assert sorted(os.listdir(state / "home")) == ["ledger.json", "run.toml"]
        # What it released is never counted too low, and at most the repeated answer twice.
        ledger = json.loads((state / "home" / "ledger.json").read_text())
        assert ROUNDS <= ledger["participations"] <= ROUNDS + 1


class StopAfter:
    """The request to stop comes after so many looks."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left < 0


def processes_of(folder: Path) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [p for p in found if any(str(folder) in word for word in p.info["cmdline"] or ())]


def test_a_supervisor_killed_at_any_point_leaves_neither_process_nor_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    settings = WorkerSettings(name="kitchen", shard=0)
    enrolment = Enrolment(settings, "127.0.0.1:1", tmp_path / "home", transport=NAME)

    def supervise() -> None:
        enrolment.check()
        enrolment.take_part(StopAfter(1))  # type: ignore[arg-type]

    points = kill_points(supervise, tmp_path, tmp_path.with_name(tmp_path.name + "-states"))
    assert points.count > 8
    for point in range(1, points.count + 1):
        kill_at(supervise, tmp_path, point)
        until = time.monotonic() + 60
        while processes_of(tmp_path):  # the kernel ends them
            assert time.monotonic() < until
            time.sleep(0.02)
    with private_folder() as folder:
        assert os.listdir(tmp_path / "t") == [folder.name]
    assert os.listdir(tmp_path / "t") == []
    assert sorted(os.listdir(tmp_path / "home")) == ["node.log", "worker.log"]
