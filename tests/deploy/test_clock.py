"""The clock of a device: measured when it joins, reported when it is wrong, and never trusted."""

import http.client
import logging
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hofl.deploy.certificates import make_certificates
from hofl.deploy.clock import ClockOffset
from hofl.deploy.keys import Identity, ServerFiles
from hofl.deploy.link import Header
from hofl.deploy.relay import Relay
from hofl.engines.base import DeviceOffer
from hofl.experiment.build import Experiment, build_server
from hofl.experiment.rounds import one_round
from hofl.experiment.runs import config_text
from support.flower_grid import LocalBridge, LocalGrid, local_engine
from support.flower_workers import device, serving
from support.network import until
from support.runs import quick

seconds = st.floats(0, 1e4)


@given(offset=st.floats(-1e8, 1e8), there=seconds, computing=seconds, back=seconds)
def test_the_true_offset_lies_within_the_error_of_the_measurement(
    offset: float, there: float, computing: float, back: float
) -> None:
    """Oracle: a message that leaves at 2e9 by a right clock, with known delays."""
    sent = 2e9
    received, arrived = sent + there, sent + there + computing + back
    clock = ClockOffset.measured(sent, received + offset, received + computing + offset, arrived)
    assert abs(clock.seconds - offset) <= clock.error + 1e-3
    assert clock.error == pytest.approx((there + back) / 2, abs=1e-3)
    assert clock.there(arrived) >= arrived + offset - 1e-3, "a deadline is never too early"
    if abs(offset) < 1e-3:
        assert not clock.wrong


@pytest.mark.parametrize("shown", [None, "now", float("nan"), float("inf"), -1, 1e300, [1.0]])
def test_what_is_not_a_time_is_refused(shown: Any) -> None:
    for header in ({"received": shown, "replied": 1.0}, {"received": 1.0, "replied": shown}):
        with pytest.raises(ValueError, match="its clock shows"):
            ClockOffset.declared(0.0, header, 1.0)


class InAnotherTime:
    """A worker on a machine whose clock is so many seconds ahead."""

    def __init__(self, worker: Any, ahead: float) -> None:
        self._worker, self._ahead = worker, ahead

    def answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        if "until" in header:
            header = {**header, "until": header["until"] - self._ahead}
        reply, upload = self._worker.answer(header, payload)
        for name in ("received", "replied"):
            if name in reply:
                reply[name] += self._ahead
        return reply, upload


CLOCKS = [0.0, 400.0, -400.0]
NODES = [5, 12, 77]


@pytest.fixture(scope="module")
def experiment(tiny_folder: Path) -> Experiment:
    fleet = {"clients": 3, "cohort": 3, "boundaries": [1, 2, 3]}
    return build_server(quick(tiny_folder, fleet=fleet, method={"local_steps": 1}))


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[dict[int, Path]]:
    with ExitStack() as stack:
        for number, (node, ahead) in enumerate(zip(NODES, CLOCKS, strict=True)):
            worker = InAnotherTime(device(tmp_path, number, number + 1), ahead)
            stack.enter_context(serving(tmp_path / str(node), worker))
        yield {node: tmp_path / str(node) for node in NODES}


def test_a_wrong_clock_is_reported_and_costs_no_answer(
    experiment: Experiment,
    sockets: dict[int, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower's process for a message runs beside the worker, in the same wrong time."""
    monkeypatch.setattr("hofl.deploy.flower.client_app._seconds_left", lambda *_: 60.0)
    lines: list[str] = []
    engine = local_engine(experiment, LocalBridge(LocalGrid(sockets)), tmp_path, say=lines.append)
    _, row = one_round(experiment, engine, experiment.start, lambda *_: None)
    assert row.answered == [0, 1, 2]
    reported = [line for line in lines if "clock" in line]
    assert [re.sub(r"is [\d.]+ s", "is S s", line) for line in reported] == [
        "device-1: its clock is S s ahead of the server's; set it there.",
        "device-2: its clock is S s behind the server's; set it there.",
    ]
    for line in reported:
        measured = float(re.search(r"is ([\d.]+) s", line)[1])
        assert measured == pytest.approx(400, abs=100), "a crowded machine is slow"


def test_a_clock_that_is_set_in_a_run_costs_at_most_one_answer(
    experiment: Experiment, tmp_path: Path
) -> None:
    """The app beside the worker has the right time all along: plans must get past it, too."""
    workers = [InAnotherTime(device(tmp_path, n, n + 1), 0.0) for n in range(3)]
    workers[1]._ahead = -2 * experiment.config.server.deadline
    with ExitStack() as stack:
        for node, worker in zip(NODES, workers, strict=True):
            stack.enter_context(serving(tmp_path / str(node), worker))
        grid = LocalGrid({node: tmp_path / str(node) for node in NODES})
        engine = local_engine(experiment, LocalBridge(grid), tmp_path)
        engine.join()
        workers[1]._ahead = 0.0  # as the server's line asks for
        state, row = one_round(experiment, engine, experiment.start, lambda *_: None)
        assert row.answered == [0, 2]
        assert "its deadline passed" in row.refused[1]
        _, row = one_round(experiment, engine, state, lambda *_: None)
        assert row.answered == [0, 1, 2]


class Dated(BaseHTTPRequestHandler):
    """A gateway that answers as nginx does, at another time."""

    protocol_version = "HTTP/1.1"
    ahead = 0.0

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.do_HEAD()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.ahead)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clock") / "fleet"
    make_certificates(folder, ["127.0.0.1"], ["kitchen"])
    return folder


@pytest.mark.parametrize(
    ("ahead", "logged"),
    [(0.0, []), (600.0, ["600 s behind the server's"]), (-600.0, ["600 s ahead of the server's"])],
)
def test_a_device_names_its_wrong_clock_in_its_log(
    ahead: float,
    logged: list[str],
    fleet: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server whose clock is ahead is a device whose clock is behind. It is logged once."""
    monkeypatch.setattr(Dated, "ahead", ahead)
    files, kitchen = ServerFiles(fleet), Identity(fleet / "devices" / "kitchen")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(*files.pair)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dated)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trusting = ssl.create_default_context(cafile=kitchen.ca)
    with (
        caplog.at_level(logging.INFO),
        Relay(f"127.0.0.1:{server.server_port}", kitchen) as relay,
    ):
        port = int(relay.address.rpartition(":")[2])
        for _ in range(2):
            link = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=30)
            link.request("POST", "/v1/fleet/get-run")
            assert link.getresponse().status == 403
            link.close()
        if logged:
            until(lambda: any("clock" in text for text in caplog.messages), "a look at the clock")
    server.shutdown()
    server.server_close()
    lines = [text for text in caplog.messages if "clock" in text]
    assert len(lines) == len(logged)
    for line, words in zip(lines, logged, strict=True):
        number, unit, rest = words.split(" ", 2)
        assert re.search(rf"clock is [\d.]+ {unit} {rest}, which refuses", line)
        measured = float(re.search(r"clock is ([\d.]+)", line)[1])
        assert measured == pytest.approx(float(number), abs=200), "a crowded machine is slow"


def test_a_plan_whose_deadline_has_passed_is_not_computed(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the client itself, which must not be asked."""
    worker = device(tmp_path, 0, 1)
    worker.answer({"kind": "join"}, config_text(experiment.config).encode())
    offers = experiment.present(0, {0: DeviceOffer(1)})
    plan = experiment.plan(experiment.start, 0, offers).to_bytes()
    header, upload = worker.answer({"kind": "plan", "until": time.time() + 600}, plan)
    assert "failure" not in header
    assert upload
    monkeypatch.setattr(worker._side.client, "upload", lambda plan: pytest.fail("it computes"))
    header, upload = worker.answer({"kind": "plan", "until": time.time() - 30}, plan)
    assert header["failure"] == "its deadline passed 30 s before this device could begin"
    assert header.keys() == {"failure", "received"}
    assert upload == b""
