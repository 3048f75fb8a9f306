"""A real SuperLink behind a real nginx: devices get through to the fleet's paths, nobody else."""

import http.client
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hofl.core.errors import HoflError
from hofl.deploy import processes
from hofl.deploy.certificates import make_certificates
from hofl.deploy.flower.commands import FLEET_PATHS
from hofl.deploy.gateway import Gateway, GatewayProcess, command
from hofl.deploy.keys import Identity
from hofl.deploy.relay import Relay
from support.network import (
    NGINX,
    answers,
    connection,
    echo_app,
    executable,
    flower_environment,
    flwr,
    json_in,
    started,
    until,
)

pytestmark = [pytest.mark.network, NGINX]
BODY = 6 * 2**20
LOG = """\
    log_format seen '"$ssl_client_s_dn" $status $uri';
    access_log access.log seen;
"""
"""In place of the line that switches logging off: the tests' own record of every request."""

CLOCK = "/"
"""Where a relay asks for the gateway's time."""


@dataclass
class Stage:
    """What runs: a SuperLink at ``inner``, nginx at ``outer``, both on loopback."""

    folder: Path
    inner: int
    outer: int

    @property
    def fleet(self) -> Path:
        return self.folder / "fleet"

    def device(self, name: str, fleet: str = "fleet") -> Identity:
        return Identity(self.folder / fleet / "devices" / name)

    def relay(self, name: str, fleet: str = "fleet") -> Relay:
        return Relay(f"127.0.0.1:{self.outer}", self.device(name, fleet))

    def node(self, name: str, address: str) -> list[str]:
        """Flower's own node, which talks to ``address``."""
        device, program = self.device(name), executable("flower-supernode")
        assert program is not None
        return [
            *(program, "--superlink", address, "--root-certificates", str(device.ca)),
            *("--auth-supernode-private-key", str(device.private_key)),
            *("--host", "127.0.0.1", "--port", str(processes.free_port()), "--max-wait-time", "20"),
        ]

    def call(
        self, path: str, context: ssl.SSLContext, body: bytes = b"", method: str = "POST"
    ) -> int:
        """Status of one request to the public side."""
        link = http.client.HTTPSConnection("127.0.0.1", self.outer, context=context, timeout=30)
        try:
            link.putrequest(method, path, skip_accept_encoding=True)
            link.putheader("Content-Type", "application/protobuf")
            link.putheader("Content-Length", str(len(body)))
            link.endheaders(body)
            return link.getresponse().status
        finally:
            link.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("gateway")
    here = Stage(folder, processes.free_port(), processes.free_port())
    make_certificates(here.fleet, ["127.0.0.1"], ["kitchen", "stranger"])
    make_certificates(folder / "others", ["127.0.0.1"], ["kitchen"])
    home, gate = folder / "home", folder / "gate"
    connection(home, f"127.0.0.1:{here.inner}", here.fleet / "ca.crt")
    superlink = executable("flower-superlink")
    assert superlink is not None
    words = [superlink, "--host", "127.0.0.1", "--port", str(here.inner)]
    words += ["--ssl-ca-certfile", str(here.fleet / "ca.crt")]
    words += ["--ssl-certfile", str(here.fleet / "server.crt")]
    words += ["--ssl-keyfile", str(here.fleet / "server.key"), "--enable-supernode-auth"]
    words += ["--disable-runtime-dependency-installation", "--isolation", "subprocess"]
    configuration = gateway(here).write(gate)
    text = configuration.read_text()
    assert "    access_log off;\n" in text
    configuration.write_text(text.replace("    access_log off;\n", LOG))
    with ExitStack() as stack:
        env = flower_environment(home)
        stack.enter_context(started(words, folder / "superlink.log", env))
        stack.enter_context(started(command(gate), folder / "nginx.log", env))
        until(lambda: answers(here.inner) and answers(here.outer), "both servers listen")
        key = here.fleet / "keys" / "kitchen.pub"
        code, output = flwr(home, "supernode", "register", str(key), "test")
        assert code == 0, output
        yield here


def gateway(stage: Stage) -> Gateway:
    return Gateway(
        listen=f"127.0.0.1:{stage.outer}",
        inner=stage.inner,
        tls=stage.fleet,
        paths=FLEET_PATHS,
        body=BODY,
    )


def requests_seen(stage: Stage, name: str) -> list[tuple[int, str]]:
    """Status and path of what a device asked, from nginx's own log."""
    lines = (stage.folder / "gate" / "access.log").read_text().splitlines()
    mine = [line.split() for line in lines if line.startswith(f'"CN={name}"')]
    return [(int(status), path) for _, status, path in mine]


def test_a_device_works_through_the_gateway(stage: Stage) -> None:
    """A whole run of Flower: 8 MB down, 8 MB up, doubled, over the fleet's paths alone."""
    home = stage.folder / "home"
    with (
        stage.relay("kitchen") as relay,
        started(
            stage.node("kitchen", relay.address),
            stage.folder / "kitchen.log",
            flower_environment(stage.folder / "kitchen"),
        ),
    ):
        app = echo_app(stage.folder / "app")
        code, output = flwr(home, "run", str(app), "test", "--format", "json")
        assert code == 0, output
        run = str(json_in(output)["run-id"])

        def status() -> str:
            listed = flwr(home, "list", "test", "--run-id", run, "--format", "json")[1]
            return json_in(listed)["runs"][0]["status"]

        until(lambda: status().startswith("finished"), "the run ends")
        assert status() == "finished:completed", (stage.folder / "superlink.log").read_text()
    seen = requests_seen(stage, "kitchen")
    # The relay reads the gateway's clock off an answer of nginx itself.
    assert {path for _, path in seen} <= {*FLEET_PATHS, CLOCK}
    assert {status for status, path in seen if path == CLOCK} <= {403, 404}
    assert {"/v1/fleet/push-object", "/v1/fleet/pull-object"} <= {path for _, path in seen}
    assert {status for status, path in seen if path != CLOCK} == {200}


CONTROL = ["start-run", "list-runs", "stop-run", "register-node", "stream-logs", "list-nodes"]
TRICKS = [
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/get-run/../../control/list-runs",
    "//v1/control/list-runs",
    "/v1/control/list-runs?/v1/fleet/get-run",
    "/v1/control/list-runs%00/v1/fleet/get-run",
    "/V1/FLEET/get-run",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/",
    "/v1/fleet/get-run%0a",
    "/v1/runtime/create-task",
    "/v1/runtime/acquire-task",
    "/docs",
    "/openapi.json",
    "/health",
    "/",
]


def test_control_calls_from_outside_are_refused_even_with_a_devices_certificate(
    stage: Stage,
) -> None:
    context = stage.device("kitchen").client_context()
    for path in [*(f"/v1/control/{name}" for name in CONTROL), *TRICKS]:
        assert stage.call(path, context) in (400, 403), path
        assert stage.call(path, context, method="GET") in (400, 403), path
    assert stage.call("/v1/fleet/get-run", context, method="GET") == 403
    # The way through exists: the same device is heard, and asked for its signature.
    assert stage.call("/v1/fleet/get-run", context) == 401


def test_a_path_that_leads_to_the_fleet_in_the_end_arrives_as_that_path(stage: Stage) -> None:
    """Not as it was written: no two readers of it can disagree."""
    context = stage.device("kitchen").client_context()
    assert stage.call("/v1/control/list-runs/../../fleet/get-run", context) == 401
    assert stage.call("/v1/fleet/%67et-run", context) == 401


def test_flowers_own_command_line_is_refused_from_outside(stage: Stage) -> None:
    """Submitting and listing runs, as whoever holds a device would try it."""
    home, app = stage.folder / "outside", echo_app(stage.folder / "attack")
    with stage.relay("kitchen") as relay:
        connection(home, relay.address, stage.fleet / "ca.crt")
        for words in (["list", "test"], ["run", str(app), "test"]):
            code, output = flwr(home, *words)
            assert code != 0, output
            assert "403" in output or "Forbidden" in output, output
    inside = flwr(stage.folder / "home", "list", "test", "--format", "json")
    assert inside[0] == 0, inside[1]


def test_no_certificate_a_strangers_and_plain_text_are_refused(stage: Stage) -> None:
    path = "/v1/fleet/get-run"
    nobody = ssl.create_default_context(cafile=str(stage.fleet / "ca.crt"))
    assert stage.call(path, nobody) == 400
    stranger = stage.device("kitchen", "others").client_context()
    stranger.load_verify_locations(stage.fleet / "ca.crt")
    assert stage.call(path, stranger) == 400
    with pytest.raises(ssl.SSLCertVerificationError):  # and that device trusts no such server
        stage.call(path, stage.device("kitchen", "others").client_context())
    link = http.client.HTTPConnection("127.0.0.1", stage.outer, timeout=30)
    link.request("POST", path)
    assert link.getresponse().status == 400
    link.close()


def test_a_request_that_is_too_long_is_refused_before_it_is_sent_on(stage: Stage) -> None:
    context = stage.device("kitchen").client_context()
    link = http.client.HTTPSConnection("127.0.0.1", stage.outer, context=context, timeout=30)
    link.putrequest("POST", "/v1/fleet/push-object")
    link.putheader("Content-Length", str(BODY + 1))
    link.endheaders()
    assert link.getresponse().status == 413
    link.close()


def test_a_device_whose_key_is_not_registered_is_refused(stage: Stage) -> None:
    """It holds a certificate of the fleet, and gets as far as Flower's own authentication."""
    with (
        stage.relay("stranger") as relay,
        started(
            stage.node("stranger", relay.address),
            stage.folder / "stranger.log",
            flower_environment(stage.folder / "stranger"),
        ) as node,
    ):
        until(lambda: node.poll() is not None, "the node gives up")
        assert node.returncode != 0
    assert {status for status, _ in requests_seen(stage, "stranger")} <= {401, 403, 404, 412}
    paths = {path for _, path in requests_seen(stage, "stranger")}
    assert paths - {CLOCK} == {"/v1/fleet/activate-node"}


def test_the_relay_of_a_device_without_the_right_authority_passes_nothing(stage: Stage) -> None:
    with stage.relay("kitchen", "others") as relay:
        context = ssl.create_default_context(cafile=str(stage.device("kitchen", "others").ca))
        port = int(relay.address.rpartition(":")[2])
        through = Stage(stage.folder, stage.inner, port)
        with pytest.raises((http.client.HTTPException, OSError)):
            through.call("/v1/fleet/get-run", context)


def test_a_gateway_that_is_killed_comes_back_and_keeps_no_record_of_requests(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_EVERY", 0.0)  # at every look, note what nginx has started
    mine = Stage(stage.folder, stage.inner, processes.free_port())
    process = GatewayProcess(gateway(mine), tmp_path)
    with pytest.raises(HoflError, match="is in use"):
        GatewayProcess(gateway(stage), tmp_path)
    context = stage.device("kitchen").client_context()
    try:
        process.open()
        assert mine.call("/v1/fleet/get-run", context) == 401
        assert mine.call("/v1/control/list-runs", context) == 403
        before = int((tmp_path / "nginx.pid").read_text())
        until(lambda: len(psutil.Process(before).children()) == 2, "nginx's own workers")
        process.keep_running()
        os.kill(before, signal.SIGKILL)
        until(lambda: process.keep_running() or _pid(tmp_path) not in (0, before), "another nginx")
        process.open()
        assert mine.call("/v1/fleet/get-run", context) == 401
    finally:
        process.close()
    assert not answers(mine.outer)
    logs = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert logs == {"nginx.conf", "nginx.log", "error.log"}
    assert "list-runs" not in (tmp_path / "error.log").read_text()


def _pid(folder: Path) -> int:
    text = (folder / "nginx.pid").read_text() if (folder / "nginx.pid").exists() else ""
    return int(text or 0)
