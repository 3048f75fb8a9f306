"""A device's resident worker: what it refuses, what it does not reveal, what it survives."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hofl.deploy.device import WorkerSettings
from hofl.deploy.worker import UNSAID, Worker
from hofl.engines.base import DeviceOffer
from hofl.experiment.build import Experiment, build_server
from hofl.experiment.config import PrivacyConfig
from hofl.experiment.runs import config_text
from hofl.messages import RoundPlan, Upload
from support.flower_workers import device
from support.runs import quick

PRIVATE = {"noise": 2.0, "scalar_clip": 0.5, "difference_clip": 0.1}


FLEET = {"clients": 3, "cohort": 2, "boundaries": [1, 2, 3]}


@pytest.fixture(scope="module")
def experiment(tiny_folder: Path) -> Experiment:
    return build_server(quick(tiny_folder, fleet=FLEET))


def joined(worker: Worker, experiment: Experiment) -> dict[str, Any]:
    """Properties of a worker that has joined the run."""
    return worker.answer({"kind": "join"}, config_text(experiment.config).encode())[0]


def first_plan(experiment: Experiment) -> RoundPlan:
    """Of client 0, with boundary 1."""
    return experiment.plan(experiment.start, 0, experiment.present(0, {0: DeviceOffer(1)}))


def test_a_device_refuses_a_plan_below_its_boundary_and_says_what_it_can_do(
    experiment: Experiment, tmp_path: Path
) -> None:
    worker = device(tmp_path, 0, 2)
    reply = joined(worker, experiment)
    assert reply["boundary"] == 2
    assert reply["examples"] == 160
    plan = first_plan(experiment).to_bytes()
    reply, upload = worker.answer({"kind": "plan"}, plan)
    assert "needs more memory" in reply["failure"]
    assert reply["boundary"] == 2
    assert upload == b""


def test_a_device_insists_on_its_noise_and_hides_how_much_data_it_holds(
    tiny_folder: Path, tmp_path: Path
) -> None:
    experiment = build_server(quick(tiny_folder, fleet=FLEET, privacy=PRIVATE))
    plan = first_plan(experiment)
    run_config = config_text(experiment.config).encode()
    for least, refused in ((0.0, False), (2.0, False), (2.1, True)):
        worker = device(tmp_path, 0, 1, min_noise=least)
        assert worker.answer({"kind": "join"}, run_config)[0]["examples"] == 1
        reply, upload = worker.answer({"kind": "plan"}, plan.to_bytes())
        assert ("noise 2, and this device" in reply.get("failure", "")) is refused
        assert (upload == b"") is refused
        assert "seconds" not in reply
    reply, upload = worker.answer({"kind": "plan"}, replace(plan, privacy=None).to_bytes())
    assert "noise 0" in reply["failure"]
    assert upload == b""
    open_to_all = experiment.config.model_copy(update={"privacy": PrivacyConfig()})
    reply, _ = worker.answer({"kind": "join"}, config_text(open_to_all).encode())
    assert reply["examples"] == 1, "a server that asks for no noise learns no more"


def test_a_restarted_worker_knows_its_run_again(experiment: Experiment, tmp_path: Path) -> None:
    first = device(tmp_path, 0, 1)
    joined(first, experiment)
    plan = first_plan(experiment).to_bytes()
    _, upload = first.answer({"kind": "plan"}, plan)
    header, again = device(tmp_path, 0, 1).answer({"kind": "plan"}, plan)
    assert "failure" not in header
    assert again == upload


@pytest.fixture(scope="module")
def resident(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    worker = device(tmp_path_factory.mktemp("resident"), 0, 1)
    assert "failure" not in joined(worker, experiment)
    return worker


def refused(worker: Worker, message: bytes) -> str:
    """The one line with which a plan is refused."""
    header, upload = worker.answer({"kind": "plan"}, message)
    assert set(header) == {"failure", "received"}
    assert upload == b""
    assert len(header["failure"].splitlines()) == 1
    return header["failure"]


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_malformed_plan_is_answered_with_a_failure_and_ends_nothing(
    data: st.DataObject, resident: Worker, experiment: Experiment
) -> None:
    """Bytes of a plan overwritten, cut off, or made up."""
    plan = bytearray(first_plan(experiment).to_bytes())
    header = int.from_bytes(plan[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        plan[data.draw(st.integers(0, 7 + header))] = data.draw(st.integers(0, 255))
    message = data.draw(st.sampled_from([bytes(plan), bytes(plan[:header]), b"", b"plan"]))
    reply, upload = resident.answer({"kind": "plan"}, message)
    if "failure" in reply:
        assert upload == b""
        assert len(reply["failure"].splitlines()) <= 1


def test_an_honest_plan_is_answered_after_malformed_ones(
    resident: Worker, experiment: Experiment
) -> None:
    plan = first_plan(experiment)
    for message in (b"", b"{}", plan.to_bytes()[:200], bytes(100)):
        refused(resident, message)
    header, upload = resident.answer({"kind": "plan"}, plan.to_bytes())
    assert "failure" not in header
    assert len(upload) > 0


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("error", [OSError("disk\nfull"), KeyError("x"), AttributeError("y")])
def test_whatever_goes_wrong_is_one_line_to_the_server_and_hidden_in_a_private_run(
    error: Exception, private: bool, tiny_folder: Path, tmp_path: Path
) -> None:
    experiment = build_server(quick(tiny_folder, privacy=PRIVATE if private else {}))
    worker = device(tmp_path, 0, 1)
    joined(worker, experiment)

    def fail(plan: RoundPlan) -> Upload:
        raise error

    worker._side.client.upload = fail  # as a full disk or a bug would
    expected = UNSAID if private else str(error).splitlines()[0]
    header, upload = worker.answer({"kind": "plan"}, first_plan(experiment).to_bytes())
    assert (header["failure"], upload) == (expected, b"")


def test_a_worker_that_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    settings = WorkerSettings(name="device-0", key=str(tmp_path / "none"))
    words = [sys.executable, "-m", "hofl.deploy.worker", settings.to_json()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot use the key")
    assert len(done.stderr.splitlines()) == 1
