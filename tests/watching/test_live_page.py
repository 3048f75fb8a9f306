"""The live page in a real Chromium, and what its server refuses."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hofl.core.errors import HoflError
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory
from hofl.watching.folder import Watched
from hofl.watching.serving import LiveServer
from support.browser import CHROMIUM, Browser, browser
from support.written_runs import write_run

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished seeds, and one run that has come as far as round 2."""
    for seed in (5, 6):
        write_run(tmp_path / f"fedavg-{seed}", "fedavg", seed, 0.7)
    write_run(tmp_path / HOSTILE, "hofl", 5, 0.6, rounds=2)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(Watched([folder])) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def add_round(run: Path, number: int) -> None:
    scores = {"accuracy": 0.9, "loss": 0.5, "examples": 200}
    costs = {"seconds": 2.0, "examples": 24, "uplink_bytes": 1000}
    RunDirectory(run).record(RoundRecord(round=number, train_loss=1.0, scores=scores, **costs))


def points(tab: Browser) -> str:
    return """[...document.querySelectorAll("#curves tbody tr")]
        .filter(line => line.firstChild.textContent === "hofl").length"""


@needs_chromium
def test_the_page_follows_a_run_in_place(server: LiveServer, folder: Path) -> None:
    with browser() as tab:
        tab.open(server.url)
        for name in ("curves", "pareto", "memory", "participation", "boundaries", "signal"):
            shapes = f"document.querySelectorAll('#{name} svg :is(path, rect, circle)').length"
            assert tab.run(shapes) > 3, name
        assert tab.run(points(tab)) == 3
        assert "round 2 of 6" in tab.run("document.querySelector('#live').innerText")
        tab.run("""(() => {
            const select = document.querySelector("#curves select[name=x]");
            select.value = "examples";
            select.dispatchEvent(new Event("change"));
            select.focus();
            document.querySelector(".origin").open = true;
            window.kept = document.querySelector("#curves");
            scrollTo(0, 300);
        })()""")
        add_round(folder / HOSTILE, 3)
        tab.wait_until(f"{points(tab)} === 4")
        assert "round 3 of 6" in tab.run("document.querySelector('#live').innerText")
        assert tab.run("document.querySelector('#curves select[name=x]').value") == "examples"
        assert tab.run("document.activeElement.name") == "x", "the keyboard stays where it was"
        assert tab.run("document.querySelector('.origin').open")
        assert tab.run("window.kept === document.querySelector('#curves')")
        assert tab.run("scrollY") == 300
        last = tab.run("""[...document.querySelectorAll("#curves tbody tr")]
            .filter(line => line.firstChild.textContent === "hofl")
            .at(-1).children[1].textContent""")
        assert int(last) == 3 * 24, "against examples, still"
        write_run(folder / "other", "hofl", 6, task={"batch_size": 8})
        tab.wait_until("document.querySelector('#curves select[name=table]') !== null")
        kept = (
            "document.activeElement.name + document.querySelector('#curves select[name=x]').value"
        )
        assert tab.run(kept) == "xexamples", "also where there is more to choose"
        server_at = urlsplit(server.url)
        assert {urlsplit(url).netloc for url in tab.requests} == {server_at.netloc}
        assert tab.complaints == []
        for width, dark in ((360, False), (360, True), (1200, True)):
            tab.open(server.url, width, dark=dark)
            tab.run("document.querySelectorAll('details').forEach(d => d.open = true)")
            tab.settle()
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.complaints == []


@needs_chromium
def test_an_empty_folder_fills_and_a_server_that_ends_is_said(tmp_path: Path) -> None:
    with LiveServer(Watched([tmp_path])) as server, browser() as tab:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        tab.open(server.url)
        assert "No run here yet" in tab.run("document.querySelector('#live').innerText")
        write_run(tmp_path / "a", "hofl", 5, rounds=1)
        tab.wait_until(f"{points(tab)} === 2")
        assert tab.complaints == []
        server.shutdown()
        server.server_close()
        thread.join()
        tab.wait_until("document.querySelector('#news').innerText.includes('has ended')")
        assert tab.run(points(tab)) == 2, "what was seen stays"


def answer(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(
        method, path, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), dict(reply.getheaders())


def test_only_the_page_and_its_data_are_served_and_only_with_the_token(
    server: LiveServer, folder: Path
) -> None:
    (folder / "secret.txt").write_text("not for browsers")
    root = urlsplit(server.url).path
    assert len(server.token) >= 32
    status, text, headers = answer(server, root + "data")
    assert status == 200
    values = json.loads(text)
    assert [one["state"] for one in values["progress"]] == ["running", "finished", "finished"]
    assert answer(server, root + "data", If_None_Match=headers["ETag"])[:2] == (304, "")
    refused = ["/", "/data", f"/{'x' * 32}/", root[:-1], root[:-2] + "/", root.upper()]
    refused += [root + "../secret.txt", root + "secret.txt", root + "%2e%2e/secret.txt"]
    refused += [root + "/../../../etc/passwd", root + "data/..", root + "data?x"]
    for path in refused:
        status, text, headers = answer(server, path)
        assert (status, text) == (404, "Not Found\n"), path
        assert server.token not in str(headers)
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        status, _, headers = answer(server, root, method)
        assert (status, headers["Allow"]) == (405, "GET"), method


def test_a_page_of_another_site_cannot_ask(server: LiveServer) -> None:
    """Its name may lead to 127.0.0.1, but the browser still says which name that was."""
    root = urlsplit(server.url).path
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert answer(server, root, Host=host)[0] == 421, host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        status, _, headers = answer(server, root, Host=host)
        assert status == 200
        assert "Access-Control-Allow-Origin" not in headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
    host = f"Host: 127.0.0.1:{port}\r\n"
    for line, reason in (
        (f"GET {root} HTTP/1.1\r\n", b" 421 "),  # no host at all
        (f"GET {root}\xe9 HTTP/1.1\r\n{host}", b" 404 "),
        (f"GET {root} HTTP/9.9\r\n{host}", b"Not Supported"),
        ("\x16\x03\x01 TLS\r\n", b"Bad Request"),
    ):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(f"{line}\r\n".encode("latin-1"))
            assert reason in raw.recv(100), line
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_one_line(server: LiveServer, folder: Path) -> None:
    with pytest.raises(HoflError, match=rf"--port {server.server_port}: .* Choose another"):
        LiveServer(Watched([folder]), server.server_port)


def test_a_damaged_comparison_is_a_line_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "comparison.toml").write_text("cells = [")
    with LiveServer(Watched([tmp_path])) as server:
        assert "comparison.toml is damaged" in server.contents()["problem"]
