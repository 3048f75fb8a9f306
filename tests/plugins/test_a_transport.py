"""A second transport, whole and in one file: plain frames over TCP, without Flower.

The server's end accepts nodes on its address. A device's end is this file, run as a program, which
passes frames between the server and the device's worker. Nothing of the package is replaced.
Devices load this file, so what needs torch is imported by the tests that use it.
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import hofl
from hofl.deploy.keys import Identity
from hofl.deploy.link import Header, LinkLost, connect, receive, send
from hofl.deploy.processes import free_port, split_address
from hofl.deploy.transport import (
    TRANSPORTS,
    Endpoint,
    Kind,
    Node,
    Notice,
    Reply,
    Sent,
    Undelivered,
    find_transport,
)
from support.runs import adapter_bytes, quick

NAME = "test_a_transport:FRAMES"
BOUNDARIES = [1, 2, 3]


class FrameHub:
    """One connection per node; one message on it at a time."""

    def __init__(self, server: socket.socket) -> None:
        self._server, self._connected = server, False
        self._links: dict[int, socket.socket] = {}
        self._asked: dict[str, int] = {}

    def connect(self) -> bool:
        fresh, self._connected = not self._connected, True
        return fresh

    def keep_running(self) -> None:
        pass

    def nodes(self) -> dict[int, str]:
        while select.select([self._server], [], [], 0)[0]:
            self._links[len(self._links)] = self._server.accept()[0]
        return dict.fromkeys(self._links, "")

    def push(self, node: int, kind: Kind, header: Header, payload: bytes, seconds: float) -> Sent:
        message = f"message-{len(self._asked)}"
        self._asked[message] = node
        send(self._links[node], {**header, "kind": kind, "message": message}, payload)
        return Sent(message, len(payload))

    def pull(self, message: str, most: int) -> Reply | Undelivered | None:
        node = self._asked[message]
        if not select.select([self._links[node]], [], [], 0)[0]:
            return None
        header, payload = receive(self._links[node])
        if len(payload) > most:
            return Undelivered(f"{len(payload)} bytes, and at most {most} are allowed")
        return Reply(node, header, payload, len(payload))

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class FrameTransport:
    """Both ends."""

    def check_server(self, endpoint: Endpoint) -> None:
        if endpoint.tls is not None:
            raise hofl.HoflError("frames are not encrypted: use 127.0.0.1 without --tls.")

    def check_device(self) -> None:
        pass

    @contextmanager
    def hub(self, folder: Path, endpoint: Endpoint, notice: Notice) -> Iterator[FrameHub]:
        with socket.create_server(split_address(endpoint.address)) as server:
            hub = FrameHub(server)
            try:
                yield hub
            finally:
                hub.close()

    @contextmanager
    def node(self, server: str, identity: Identity | None, home: Path) -> Iterator[Node]:
        yield Node(lambda path: [sys.executable, __file__, server, str(path)], os.environ)


FRAMES = FrameTransport()


def forward(server: str, worker: Path) -> None:
    """A device's node: pass frames on until the server closes the connection."""
    while True:  # the server and the worker may start later
        try:
            link = socket.create_connection(split_address(server))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    with link, suppress(LinkLost):
        while True:
            request = receive(link)
            while not worker.exists():
                time.sleep(0.1)
            with connect(worker) as resident:
                send(resident, *request)
                reply = receive(resident)
            send(link, *reply)


@pytest.fixture(scope="module")
def config(tiny_folder: Path) -> hofl.ExperimentConfig:
    return quick(tiny_folder, fleet={"clients": 3, "cohort": 2, "boundaries": BOUNDARIES})


@pytest.fixture(scope="module")
def expected(config: hofl.ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return adapter_bytes(hofl.run(config, tmp_path_factory.mktemp("in-process") / "run").path)


def test_a_run_over_another_transport_ends_in_the_same_bits(
    config: hofl.ExperimentConfig, expected: bytes, tmp_path: Path
) -> None:
    """Real workers behind their sockets, their nodes in threads."""
    from hofl.deploy.server import server_launcher
    from hofl.experiment.runs import RunDirectory
    from support.flower_workers import device, serving

    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        for number, boundary in enumerate(BOUNDARIES):
            path = tmp_path / str(number)
            stack.enter_context(serving(path, device(tmp_path, number, boundary)))
            threading.Thread(target=forward, args=(address, path), daemon=True).start()
        launcher = server_launcher(Endpoint(address=address, transport=NAME))
        run = hofl.run(config, tmp_path / "run", launcher=launcher).path
    assert adapter_bytes(run) == expected
    for row in RunDirectory(run).metrics()[1:]:
        assert row.refused == {}
        assert row.present == {0: 1, 1: 2, 2: 3}
        assert sum(sizes["down"] for sizes in row.wire.values()) == row.downlink_bytes


@pytest.mark.network
def test_devices_of_a_rehearsal_use_the_transport_that_they_are_given(
    config: hofl.ExperimentConfig,
    expected: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Supervisors, workers and nodes as processes of their own."""
    from hofl.deploy.rehearsal import rehearsal_launcher

    here = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*here, os.environ.get("PYTHONPATH", "")]))
    run = hofl.run(config, tmp_path / "run", launcher=rehearsal_launcher(transport=NAME)).path
    assert adapter_bytes(run) == expected


def test_transports_are_found_by_name_or_place_and_others_are_one_line() -> None:
    for name in TRANSPORTS:
        find_transport(name)
    assert find_transport(NAME) is FRAMES
    for name, message in (
        ("carrier-pigeon", "unknown transport 'carrier-pigeon': choose one of flower"),
        ("nowhere.at_all:X", "cannot load transport 'nowhere.at_all:X': No module named"),
        ("hofl.deploy.link:X", "cannot load transport"),
    ):
        with pytest.raises(hofl.HoflError, match=message):
            find_transport(name)


if __name__ == "__main__":
    forward(sys.argv[1], Path(sys.argv[2]))
