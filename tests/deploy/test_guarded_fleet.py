"""``hofl server`` and ``hofl device`` with certificates: a run through the gateway they start."""

import http.client
import shutil
import time
from pathlib import Path

import pytest

import hofl
from hofl.deploy.certificates import make_certificates
from hofl.deploy.keys import Identity
from hofl.deploy.processes import answers, free_port, running
from hofl.deploy.server import server_launcher
from hofl.deploy.transport import Endpoint
from support.deployments import Deployment, note, wait_until
from support.network import NGINX
from support.runs import adapter_bytes, quick

MASTER = "nginx: master|nginx -p"
pytestmark = [pytest.mark.network, NGINX]


def status(port: int, device: Identity, path: str) -> int:
    context = device.client_context()
    link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        link.request("POST", path, headers={"Content-Type": "application/protobuf"})
        return link.getresponse().status
    finally:
        link.close()


def test_a_fleet_with_certificates_trains_through_the_gateway_to_the_same_bits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Two devices train; a third has a certificate, but its key file was deleted.

    The gateway is killed in round 2 and comes back; no answer is lost. A device is killed in round
    3 with all its processes, and restarted: the round is repeated when it is admitted.
    """
    fleet = {"clients": 2, "cohort": 2, "boundaries": [1, 2]}
    config = quick(
        tiny_folder,
        fleet=fleet,
        rounds=3,
        method={"local_steps": 40},
        server={"deadline": 240.0, "attempts": 3, "min_answers": 2},
    )
    expected = hofl.run(config, tmp_path / "in-process")
    tls = tmp_path / "fleet"
    make_certificates(tls, ["127.0.0.1"], ["device-0", "device-1", "device-2"])
    (tls / "keys" / "device-2.pub").unlink()
    with Deployment(config, tmp_path, free_port(), tls) as run:
        run.serve()
        for number in (0, 1, 2):
            run.add(number, min(number + 1, 2))
        run.in_round(0, 1)
        device = Identity(tls / "devices" / "device-0")
        assert status(run.port, device, "/v1/control/start-run") == 403
        assert status(run.port, device, "/v1/fleet/get-run") == 401
        run.in_round(1, 2)
        killed, began = run.kill("server", MASTER), time.monotonic()
        wait_until(lambda: run.pids("server", MASTER) - {killed}, "another gateway")
        wait_until(lambda: answers("127.0.0.1", run.port), "the gateway")
        outcome = "restarted; no answer is lost, no bit changed"
        note("gateway (nginx)", outcome, time.monotonic() - began)
        _start_again(run, 1, 3)
        run.finished()
        assert run.addresses() <= {"127.0.0.1"}
        rows = run.rows()
        assert [row.answered for row in rows[1:]] == [[0, 1]] * 3
        assert all(row.refused == {} for row in rows)
        assert [len(row.repeats) for row in rows[1:]] == [0, 0, 1]
        assert list(rows[3].repeats[0].refused) == [1]
        for sizes in (sizes for row in rows[1:] for sizes in row.wire.values()):
            assert set(sizes) == {"plan", "down", "upload", "up", "seconds"}
            assert sizes["plan"] < sizes["down"]
            assert sizes["upload"] < sizes["up"]
        assert adapter_bytes(run.run) == adapter_bytes(expected.path)
        refused = (tmp_path / "home-2" / "node.log").read_text()
        assert "Failed to activate SuperNode" in refused, "through nginx, not into the SuperLink"
        assert not (tmp_path / "home-2" / "run.toml").exists()
        assert not (run.run / "network" / "gateway" / "access.log").exists()
    wait_until(lambda: not run.leftovers(), f"the end of {run.leftovers()}")


def _start_again(run: Deployment, number: int, round_number: int) -> None:
    """Kill -9 of a device with all its processes in a round, the last one, and wait for its end."""
    run.halt(number, round_number)
    before = run.family(f"device-{number}")
    run.kill(f"device-{number}")
    run.release()
    began = time.monotonic()
    wait_until(lambda: not any(map(running, before)), "the end of a killed device's processes")
    run.add(number, number + 1)
    wait_until(lambda: len(run.rows()) > round_number, "the repeated round")
    outcome = "with `min_answers` of all: admitted again, the round is repeated, no bit changed"
    note("device with a key, all its processes", outcome, time.monotonic() - began)


def test_without_nginx_a_server_outside_loopback_does_not_start(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path / "fleet", ["127.0.0.1"], ["kitchen"])
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    endpoint = Endpoint(
        address=f"127.0.0.1:{free_port()}", tls=tmp_path / "fleet", nodes=tmp_path / "fleet/keys"
    )
    with pytest.raises(hofl.HoflError, match="nginx, which is not installed: apt install"):
        hofl.run(quick(tiny_folder), tmp_path / "run", launcher=server_launcher(endpoint))
