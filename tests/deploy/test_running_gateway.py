"""A running gateway under a flood; a gateway and a SuperLink that follow the certificates."""

import http.client
import resource
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hofl.deploy import processes
from hofl.deploy.certificates import make_certificates
from hofl.deploy.clock import ClockOffset, dated
from hofl.deploy.flower import commands
from hofl.deploy.flower.admission import Admission
from hofl.deploy.gateway import Gateway, GatewayProcess, command
from hofl.deploy.keys import Identity, ServerFiles
from hofl.deploy.renewal import renew, revoke
from support.network import (
    NGINX,
    answers,
    executable,
    flower_environment,
    json_in,
    started,
    until,
)

pytestmark = pytest.mark.network
DEVICES = ["kitchen", "attic"]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "fleet", ["127.0.0.1"], DEVICES)
    return tmp_path / "fleet"


@pytest.fixture
def inner(fleet: Path, tmp_path: Path) -> Iterator[int]:
    """The port of a real SuperLink."""
    port, program = processes.free_port(), executable("flower-superlink")
    assert program is not None
    words = commands.superlink("127.0.0.1", port, tmp_path / "db", ServerFiles(fleet))
    with started(words, tmp_path / "superlink.log", flower_environment(tmp_path / "home")):
        until(lambda: answers(port), "the SuperLink listens")
        yield port


def gateway(fleet: Path, inner: int, outer: int) -> Gateway:
    return Gateway(
        listen=f"127.0.0.1:{outer}",
        inner=inner,
        tls=fleet,
        paths=commands.FLEET_PATHS,
        body=2**20,
    )


def status(port: int, device: Identity) -> int:
    """Of a device's call, over a new connection: 401 is Flower's, behind the gateway."""
    context = device.client_context()
    link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        link.request("POST", "/v1/fleet/get-run", headers={"Content-Type": "application/protobuf"})
        return link.getresponse().status
    finally:
        link.close()


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Let this process open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@NGINX
def test_thousands_of_bare_connections_do_not_lock_devices_out(
    fleet: Path, inner: int, tmp_path: Path
) -> None:
    """The gateway is started with a soft limit of 1,024 open files, as most systems do it."""
    outer, kitchen = processes.free_port(), Identity(fleet / "devices" / "kitchen")
    gateway(fleet, inner, outer).write(tmp_path)
    words = ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", *command(tmp_path)]
    env = flower_environment(tmp_path / "nginx")
    with many_files(5000), started(words, tmp_path / "log", env), ExitStack() as flood:
        until(lambda: answers(outer), "the gateway listens")
        for _ in range(2200):
            flood.enter_context(socket.create_connection(("127.0.0.1", outer), timeout=30))
        assert status(outer, kitchen) == 401
    assert "Too many open files" not in (tmp_path / "error.log").read_text()


def _date(port: int, device: Identity) -> float:
    """What the gateway's clock shows, by an answer to nothing in particular."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        device.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as link,
    ):
        link.sendall(b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return dated(link.recv(2**16))


@NGINX
def test_a_running_gateway_takes_renewed_certificates_and_refuses_revoked_ones(
    fleet: Path, inner: int, tmp_path: Path
) -> None:
    outer, old = processes.free_port(), tmp_path / "old"
    shutil.copytree(fleet, old)
    process = GatewayProcess(gateway(fleet, inner, outer), tmp_path / "gateway")

    def seen(name: str, folder: Path) -> int:
        process.keep_running()
        return status(outer, Identity(folder / "devices" / name))

    def shown() -> str:
        process.keep_running()
        return ssl.get_server_certificate(("127.0.0.1", outer))

    try:
        process.open()
        assert [seen(name, old) for name in DEVICES] == [401, 401]
        sent = time.time()
        date = _date(outer, Identity(old / "devices" / "kitchen"))
        clock = ClockOffset.by_date(sent, date, time.time())
        assert not clock.wrong, "devices set their clocks by this answer"
        before = shown()
        renew(fleet, [], [])
        until(lambda: shown() != before, "the renewed server certificate")
        for name in DEVICES:
            shutil.copytree(old / "devices" / name, tmp_path / "new" / "devices" / name)
            for path in (fleet / "devices" / name).glob("*.crt"):
                shutil.copy(path, tmp_path / "new" / "devices" / name)
        folders = [old, tmp_path / "new"]
        assert [seen(name, folder) for name in DEVICES for folder in folders] == [401] * 4
        revoke(fleet, ["attic"])
        until(lambda: seen("attic", old) == 400, "the refusal of a revoked device")
        assert seen("attic", tmp_path / "new") == 400
        assert [seen("kitchen", folder) for folder in folders] == [401, 401]
    finally:
        process.close()


def test_a_device_whose_key_is_deleted_is_unregistered_also_by_a_server_that_comes_later(
    fleet: Path, inner: int, tmp_path: Path
) -> None:
    """Oracle: Flower's own list of nodes."""
    home, lines = tmp_path / "loop", []
    home.mkdir()
    commands.write_connection(home, f"127.0.0.1:{inner}", ServerFiles(fleet))

    def listed() -> int:
        words = ("supernode", "list", commands.CONNECTION, "--format", "json")
        nodes = json_in(commands.flwr(home, *words))["nodes"]
        return sum(node["status"] != "unregistered" for node in nodes)

    first = (fleet / "keys" / "kitchen.pub").read_text()
    Admission(home, fleet / "keys", lines.append).update()
    assert listed() == 2
    (fleet / "keys" / "attic.pub").unlink()
    server = Admission(home, fleet / "keys", lines.append)
    server.update()
    assert listed() == 1
    added = ["attic was registered: its key was added", "kitchen was registered: its key was added"]
    assert lines == [*added, "attic was unregistered: its key is gone"]
    lines.clear()
    make_certificates(tmp_path / "other", ["127.0.0.1"], ["kitchen", "attic"])
    shutil.copy(tmp_path / "other" / "keys" / "kitchen.pub", fleet / "keys")
    shutil.copy(tmp_path / "other" / "keys" / "attic.pub", fleet / "keys")
    server.update()
    assert listed() == 2
    assert lines == ["kitchen was unregistered: its key is gone", *added]
    lines.clear()
    (fleet / "keys" / "kitchen.pub").write_text(first)
    later = Admission(home, fleet / "keys", lines.append)
    later.update()
    later.update()
    assert listed() == 1
    assert "kitchen was unregistered" in lines[0]
    assert "Flower takes no key twice. Make another: hofl certs" in lines[1]
    assert len(lines) == 2
