"""The real thing on 127.0.0.1: Flower's SuperLink, devices with resident workers, and faults.

Started by ``make test-network``. Every process is ended by the test that started it.
"""

import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import hofl
from deployments import Deployment, replayed, wait_until
from hofl.engines.network.processes import free_port
from hofl.experiment.config import ExperimentConfig
from runs import adapter_bytes, quick, run_cli

pytestmark = pytest.mark.network

BOUNDARIES = [1, 2, 3]


def network_config(folder: Path, **changes: object) -> ExperimentConfig:
    fleet = {"clients": 3, "cohort": 3, "boundaries": BOUNDARIES}
    return quick(folder, **{"fleet": fleet, "server": {"deadline": 240.0}, **changes})


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> ExperimentConfig:
    """Rounds long enough to be hit in the middle."""
    return network_config(tiny_folder, rounds=4, method={"local_steps": 40})


@pytest.fixture(scope="module")
def expected(config: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return adapter_bytes(hofl.run(config, tmp_path_factory.mktemp("in-process") / "run").path)


def test_a_rehearsal_ends_in_the_same_bits_as_one_process(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = network_config(tiny_folder, rounds=2)
    expected = hofl.run(config, tmp_path / "in-process")
    source = tmp_path / "in-process" / "config.toml"
    out = tmp_path / "rehearsal"
    code, output = run_cli("fleet", str(source), "--out", str(out), timeout=500)
    assert code == 0, output
    assert adapter_bytes(out) == adapter_bytes(expected.path)
    run = Deployment(config, tmp_path, 0)
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}", 30)


def test_faults_of_worker_hub_and_server_cost_no_bit(
    config: ExperimentConfig, expected: bytes, tmp_path: Path
) -> None:
    """Kill -9 of a worker in round 1, of the SuperLink in round 2, of the server in round 3."""
    with Deployment(config, tmp_path, free_port()) as run:
        run.serve()
        for number, boundary in enumerate(BOUNDARIES):
            run.add(number, boundary)
        run.in_round(0, 1)
        assert run.addresses() <= {"127.0.0.1"}
        run.kill("device-0", r"network\.worker")
        _recovers(run, 1, "worker")
        run.in_round(1, 2)
        run.kill("server", "flower-superlink")
        _recovers(run, 2, "SuperLink")
        run.in_round(2, 3)
        run.kill("server")
        run.serve()
        _recovers(run, 3, "server")
        run.finished()
        rows = run.rows()
        assert [row["answered"] for row in rows[1:]] == [[0, 1, 2]] * 4
        assert all(row["refused"] == {} for row in rows)
        assert adapter_bytes(run.run) == expected
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}", 30)


def test_a_device_that_is_killed_is_left_out_and_taken_back(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    """Oracle: the same presence and failures, computed in one process."""
    longer = config.model_copy(update={"rounds": 6})
    with Deployment(longer, tmp_path, free_port()) as run:
        run.serve()
        for number, boundary in enumerate(BOUNDARIES):
            run.add(number, boundary)
        run.in_round(2, 2)
        run.family("device-2")
        run.kill("device-2")
        began = time.monotonic()
        wait_until(lambda: len(run.rows()) > 2, "round 2 without the device")
        print(f"device: round ended {time.monotonic() - began:.0f} s after the kill")
        run.add(2, BOUNDARIES[2])
        wait_until(lambda: _back(run), "the device to answer again")
        print(f"device: took part again {time.monotonic() - began:.0f} s after the kill")
        run.finished()
        rows = run.rows()
        assert "2" in rows[2]["refused"]
        assert rows[2]["answered"] == [0, 1]
        again = replayed(longer, rows, tmp_path / "again")
        assert adapter_bytes(run.run) == adapter_bytes(again)


def _back(run: Deployment) -> bool:
    run.check()
    return any(2 in row["answered"] for row in run.rows()[3:])


def _recovers(run: Deployment, round_number: int, what: str) -> None:
    began = time.monotonic()

    def recorded() -> bool:
        run.check()
        return len(run.rows()) > round_number

    wait_until(recorded, f"round {round_number} after the {what}'s death")
    print(f"{what}: round {round_number} ended {time.monotonic() - began:.0f} s after the kill")
