"""The real thing on 127.0.0.1: Flower's SuperLink, devices with resident workers, and faults.

Started by ``make test-network``. Every process is ended by the test that started it.
"""

import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import hofl
from hofl.deploy.processes import free_port, running
from hofl.experiment.build import build_simulation
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from support.deployments import Deployment, note, replayed, wait_until
from support.runs import adapter_bytes, quick, run_process, start_cli

pytestmark = pytest.mark.network

BOUNDARIES = [1, 2, 3]
# Flower's own processes, not their guards, whose words name them too.
SUPERLINK, SUPERNODE = r"python\S* \S+flower-superlink", r"python\S* \S+flower-supernode"


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
    code, output = run_process("fleet", str(source), "--out", str(out))
    assert code == 0, output
    assert re.search(r"messages: .* down, .* up, \d+\.\d\d % more than plans and uploads", output)
    assert adapter_bytes(out) == adapter_bytes(expected.path)
    nobody_left(Deployment(config, tmp_path, 0))


def test_devices_of_a_rehearsal_plan_their_own_boundaries_from_their_budgets(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Oracle: the same budgets in one process."""
    fleet = {"clients": 3, "cohort": 3, "boundaries": [], "strategy": "paper"}
    unplanned = network_config(tiny_folder, rounds=2, fleet=fleet)
    rich = unplanned.fleet.model_copy(update={"budgets": ("1GiB",)})
    peaks = {
        row["boundary"]: str(row["peak_bytes"])
        for row in build_simulation(unplanned.model_copy(update={"fleet": rich})).memory_plan[
            "boundaries"
        ]
    }
    planned = [2, 0, 1]
    budgets = tuple(peaks[boundary] for boundary in planned)
    sized = unplanned.fleet.model_copy(update={"budgets": budgets})
    expected = hofl.run(unplanned.model_copy(update={"fleet": sized}), tmp_path / "in-process")
    run, out = Deployment(unplanned, tmp_path, 0), tmp_path / "rehearsal"
    words = ["fleet", str(run.source), "--memory", ",".join(budgets), "--out", str(out)]
    code, output = run_process(*words)
    assert code == 0, output
    rows = RunDirectory(out).metrics()
    there = dict(enumerate(planned))
    assert [row.present for row in rows[1:]] == [there] * 2
    assert f"device-1 joined: boundary 0 with {budgets[1]}, " in output
    assert adapter_bytes(out) == adapter_bytes(expected.path)
    nobody_left(run)


def test_devices_of_a_rehearsal_train_exactly_where_they_can(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Two devices run backward, one cannot. Oracle: the same devices in one process."""
    devices = [{"memory": "1GiB"}, {"memory": "1GiB", "backward": False}, {"memory": "200MiB"}]
    fleet = {"clients": 3, "cohort": 3, "boundaries": [], "devices": devices}
    config = network_config(tiny_folder, rounds=2, fleet=fleet)
    expected = hofl.run(config, tmp_path / "in-process")
    run, out = Deployment(config, tmp_path, 0), tmp_path / "rehearsal"
    code, output = run_process("fleet", str(run.source), "--out", str(out))
    assert code == 0, output
    exact, forward_only = {"bottom": "recompute", "uplink_bits": 4}, {"surrogate": "end-to-end"}
    rules = RunDirectory(out).metrics()[-1].rules
    assert rules == {0: exact, 1: forward_only, 2: exact}
    assert adapter_bytes(out) == adapter_bytes(expected.path)
    nobody_left(run)


def test_devices_started_by_hand_keep_to_their_limits(tiny_folder: Path, tmp_path: Path) -> None:
    """``hofl device`` with every kind of limit. Oracle: what was recorded, in one process."""
    fleet = {"clients": 3, "cohort": 3, "boundaries": []}
    adapter = {"rank": 16, "alpha": 4}
    config = network_config(tiny_folder, rounds=2, fleet=fleet, adapter=adapter)
    slow = ("--seconds", "3600", "--gflops", "1", "--disk", "1GiB", "--read-speed", "100MiB/s")
    limits = {
        0: ("--memory", "1GiB", *slow),
        1: ("--memory", "1GiB", "--no-backward"),
        2: ("--memory", "1GiB", "--disk", "0", "--uplink", "1480B"),
    }
    with Deployment(config, tmp_path, free_port()) as run:
        run.serve()
        for number, options in limits.items():
            run.add(number, None, *options)
        run.finished()
        rows = run.rows()
        assert [row.answered for row in rows[1:]] == [[0, 1, 2]] * 2
        exact, forward_only = {"bottom": "recompute", "uplink_bits": 4}, {"surrogate": "end-to-end"}
        rules = rows[-1].rules
        assert (rules[0], rules[1]) == (exact, forward_only)
        assert rules.get(2, {}).get("bottom") != "recompute"
        present = rows[-1].present or {}
        assert 0 < present[2] < present[1], "as much of the top as 1480 bytes carry"
        again = replayed(config, rows, tmp_path / "again")
        assert adapter_bytes(run.run) == adapter_bytes(again)
    nobody_left(run)


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
        run.kill("device-0", r"deploy\.worker")
        _recovers(run, 1, "resident worker", "restarted; the same message is answered")
        run.in_round(1, 2)
        run.kill("server", SUPERLINK)
        _recovers(run, 2, "SuperLink", "restarted; the round is run again with the same cohort")
        run.in_round(2, 3)
        before = run.family("server")
        run.kill("server")
        wait_until(lambda: not any(map(running, before)), "the end of a killed server's processes")
        run.serve()
        _recovers(run, 3, "server loop", "`--resume`: the round is run again")
        run.finished()
        rows = run.rows()
        assert [row.answered for row in rows[1:]] == [[0, 1, 2]] * 4
        assert all(row.refused == {} for row in rows)
        assert adapter_bytes(run.run) == expected
    nobody_left(run)


def test_a_device_that_is_killed_is_left_out_and_taken_back(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    """Oracle: the same presence and failures, computed in one process."""
    longer = config.model_copy(update={"rounds": 10})
    with Deployment(longer, tmp_path, free_port()) as run:
        run.serve()
        for number, boundary in enumerate(BOUNDARIES):
            run.add(number, boundary)
        before = _hit_in_round_two(run)
        began = time.monotonic()
        wait_until(lambda: not any(map(running, before)), "the end of a killed device's processes")
        run.add(2, BOUNDARIES[2])
        wait_until(lambda: len(run.rows()) > 2, "round 2 without the devices")
        known = time.monotonic() - began
        outcome = f"left out of the round ({known:.0f} s until detected), back in a later one"
        kinds = {2: "device, with all its processes", 1: "a device's SuperNode"}
        while kinds:
            client = wait_until(lambda: _back(run, kinds), f"{kinds} to answer again")
            note(kinds.pop(client), outcome, time.monotonic() - began)
        while not any(0 in row.refused for row in run.rows()):
            _hit_an_app(run)
        run.finished()
        rows = run.rows()
        assert set(rows[2].refused) == {1, 2}
        assert rows[2].answered == [0]
        assert [set(row.refused) for row in rows[3:] if row.refused] == [{0}]
        again = replayed(longer, rows, tmp_path / "again")
        assert adapter_bytes(run.run) == adapter_bytes(again)
    nobody_left(run)


def test_ctrl_c_ends_everything_and_the_printed_command_resumes_to_the_same_bits(
    config: ExperimentConfig, expected: bytes, tmp_path: Path
) -> None:
    run, out = Deployment(config, tmp_path, 0), tmp_path / "run"
    process = start_cli("fleet", str(run.source), "--out", str(out))
    log = out / "network" / "device-1" / "worker.log"
    wait_until(lambda: log.exists() and "round 2:" in log.read_text(), "round 2")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    nobody_left(run)
    hint = output.strip().splitlines()[-1]
    assert hint.startswith("stopped; resume with: hofl fleet "), output
    code, output = run_process(*hint.partition("hofl ")[2].split())
    assert code == 0, output
    assert adapter_bytes(out) == expected
    nobody_left(run)


def nobody_left(run: Deployment) -> None:
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}")


def _hit_in_round_two(run: Deployment) -> list[psutil.Process]:
    """Kill -9 of device 2 and of device 1's SuperNode before they can answer."""
    for number in (1, 2):
        run.halt(number, 2)
    family = run.family("device-2")
    run.kill("device-1", SUPERNODE)
    run.kill("device-2")
    run.release()
    return family


def _hit_an_app(run: Deployment) -> None:
    """Kill -9 of the process that Flower started for one message, if its device still computes."""
    number = len(run.rows()) + 1
    run.halt(0, number, computing=True)
    for pid in run.pids("device-0", "flwr-clientapp"):  # earlier ones may not have ended yet
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.release()
    began = time.monotonic()
    wait_until(lambda: len(run.rows()) > number, "the round without its answer")
    note(
        "Flower's process for one message",
        "that answer is missing from its round, the device stays",
        time.monotonic() - began,
    )


def _back(run: Deployment, clients: Iterable[int]) -> int | None:
    """Whichever of these clients (none is 0) has answered after round 2."""
    run.check()
    answered = {client for row in run.rows()[3:] for client in row.answered}
    return next((client for client in clients if client in answered), None)


def _recovers(run: Deployment, round_number: int, what: str, outcome: str) -> None:
    began = time.monotonic()

    def recorded() -> bool:
        run.check()
        return len(run.rows()) > round_number

    wait_until(recorded, f"round {round_number} after the {what}'s death")
    note(what, f"{outcome}, no bit changed", time.monotonic() - began)
