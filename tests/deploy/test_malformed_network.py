"""Malformed answers over the real thing: Flower's SuperLink and nodes, a real server and devices.

Hostile devices join honestly and send one kind after the other; every attempt at the round is
repeated, because all answers are wanted, until they tell the truth.
"""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

import hofl
from hofl.deploy.processes import free_port
from hofl.experiment.build import build_simulation
from hofl.messages import Upload
from support.deployments import Deployment, wait_until
from support.flower_workers import device
from support.hostile_devices import DOUBTS, LIES, Liar, taking_part
from support.runs import adapter_bytes, quick

pytestmark = pytest.mark.network

BOUNDARIES = [2, 1, 1, 2, 1, 2, 1, 2]
"""Of an honest device and seven hostile ones, which share the kinds."""


def test_every_kind_is_refused_with_its_reason_and_leaves_no_trace_in_the_bits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Oracle: the same round in one process, where everyone is honest."""
    clients = len(BOUNDARIES)
    share = {number: list(LIES)[number - 1 :: clients - 1] for number in range(1, clients)}
    attempts = max(map(len, share.values()))
    limits = {"max_norm": 100.0, "max_scalar": 1000.0, "deadline": 240.0}
    config = quick(
        tiny_folder,
        rounds=1,
        fleet={"clients": clients, "cohort": clients, "boundaries": BOUNDARIES},
        server={**limits, "min_answers": clients, "attempts": attempts + 1},
    )
    expected = hofl.run(config, tmp_path / "in-process")
    experiment = build_simulation(config)
    plan = experiment.plan(experiment.start, 0, experiment.present(0))
    other = Upload.from_bytes(experiment.client.answer(plan.to_bytes()))
    assert len(LIES) >= 100
    with Deployment(config, tmp_path, free_port()) as run, ExitStack() as stack:
        run.serve()
        run.add(0, BOUNDARIES[0])
        liars = {
            number: Liar(
                device(tmp_path, number, BOUNDARIES[number]), lies, experiment.layout, other
            )
            for number, lies in share.items()
        }
        for number, liar in liars.items():
            stack.enter_context(taking_part(liar, f"device-{number}", run.port, tmp_path))
        run.finished(1500)
        (row,) = run.rows()[1:]
        repeats = row.repeats
        for number, lies in share.items():
            reasons = [repeat.refused.pop(number, "taken") for repeat in repeats]
            assert len(reasons) == attempts
            for lie, reason in zip(lies, reasons, strict=False):
                assert re.search(LIES[lie][1], reason), (lie, reason)
                assert reason.isprintable()
            assert set(reasons[len(lies) :]) <= {"taken"}
        assert [repeat.refused for repeat in repeats] == [{}] * attempts, "the honest device"
        assert row.refused == {}
        assert row.answered == list(range(clients))
        assert sum(liar.joined for liar in liars.values()) == len(liars) + DOUBTS
        assert adapter_bytes(run.run) == adapter_bytes(expected.path)
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}")
