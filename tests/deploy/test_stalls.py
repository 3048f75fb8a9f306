"""A device that is stopped (SIGSTOP) in a round costs its own answer, and comes back.

Real servers, workers and nodes on 127.0.0.1, with and without the gateway.
"""

import re
import time
from pathlib import Path

import pytest

from hofl.deploy.certificates import make_certificates
from hofl.deploy.processes import free_port
from support.deployments import Deployment, note, replayed, wait_until
from support.network import NGINX
from support.runs import adapter_bytes, quick

pytestmark = pytest.mark.network
DEADLINE = 30.0
"""Rounds of honest devices take 10 s, most of it polling; Flower itself gives a silent node up 60 s
after its last sign, which may be 30 s after it was stopped."""
SILENT = re.compile(rf"no answer within {DEADLINE:g} s|Node Unavailable")
WORKER, EVERYTHING = r"deploy\.worker", ""


Stall = tuple[int, bool, str]
"""A device, whether it is stopped while it computes or as the round begins, and what is stopped."""
PLAIN = [(0, False, WORKER), (1, True, WORKER), (2, False, EVERYTHING)]
GUARDED = [(2, True, EVERYTHING)]


@pytest.mark.parametrize(
    ("gateway", "stalls"),
    [(False, PLAIN), pytest.param(True, GUARDED, marks=NGINX)],
    ids=["plain", "behind the gateway"],
)
def test_a_stopped_device_costs_its_own_answer_and_comes_back(
    gateway: bool, stalls: list[Stall], tiny_folder: Path, tmp_path: Path
) -> None:
    """From round 2 on, one device after another. Every port that is opened is announced.

    Oracle: the same presence and failures, computed in one process.
    """
    fleet = {"clients": 3, "cohort": 3, "boundaries": [1, 2, 3]}
    config = quick(
        tiny_folder,
        fleet=fleet,
        rounds=len(stalls) + 2,
        method={"local_steps": 30},
        server={"deadline": DEADLINE, "attempts": 1, "min_answers": 2},
    )
    tls = tmp_path / "fleet" if gateway else None
    if tls is not None:
        make_certificates(tls, ["127.0.0.1"], ["device-0", "device-1", "device-2"])
    with Deployment(config, tmp_path, free_port(), tls) as run:
        run.serve()
        for number in range(3):
            run.add(number, number + 1)
        run.in_round(0, 1)
        assert run.listening() <= run.announced()
        for round_number, (number, computing, what) in enumerate(stalls, start=2):
            _stalls(run, number, round_number, computing, what)
        run.finished()
        rows = run.rows()
        stopped = [number for number, _, _ in stalls]
        refused = [[], *([number] for number in stopped), []]
        assert [list(row.refused) for row in rows[1:]] == refused
        assert all(SILENT.search(why) for row in rows for why in row.refused.values())
        assert [row.answered for row in rows[1:]] == [
            [client for client in range(3) if client not in gone] for gone in refused
        ]
        assert all(row.repeats == [] for row in rows)
        assert adapter_bytes(run.run) == adapter_bytes(replayed(config, rows, tmp_path / "again"))
        output = (tmp_path / "server.out").read_text()
        for number in stopped:
            line = f"2 of 3 answered; device-{number} gave none within {DEADLINE:g} s"
            assert line in output
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}")


def _stalls(run: Deployment, number: int, round_number: int, computing: bool, what: str) -> None:
    run.halt(number, round_number, computing, what)
    began = time.monotonic()

    def recorded() -> bool:
        run.check()
        return len(run.rows()) > round_number

    wait_until(recorded, f"round {round_number} without device {number}")
    run.release()
    whole = "a device, with all its processes" if what == EVERYTHING else "a resident worker"
    outcome = "left out of the round at the deadline, back in the next one"
    note(f"{whole} (SIGSTOP)", outcome, time.monotonic() - began)
