"""The gateway's access log against the real nginx: it stays short, and no byte goes uncounted."""

import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hofl.engines.network import gate as module
from hofl.engines.network.gate import Gate
from hofl.engines.network.processes import free_port
from hofl.secure.certificates import make_certificates
from hofl.secure.relay import DeviceFiles
from network import NGINX, until

pytestmark = [pytest.mark.network, NGINX]
LONGEST, SECONDS = 2000, 1.0
ROUNDS, EACH = 5, 20


def test_the_log_is_begun_anew_under_load_and_every_request_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: requests are alike, so their bytes are those of one, times their number."""
    monkeypatch.setattr(module, "LONGEST_LOG", LONGEST)
    monkeypatch.setattr(module, "LOG_SECONDS", SECONDS)
    tls, folder, port = tmp_path / "fleet", tmp_path / "gateway", free_port()
    make_certificates(tls, ["127.0.0.1"], ["kitchen", "attic"])
    contexts = {
        name: DeviceFiles(tls / "devices" / name, name).client_context()
        for name in ("kitchen", "attic")
    }
    gate = Gate(folder, f"127.0.0.1:{port}", free_port(), tls)

    def ask(name: str) -> int:
        link = http.client.HTTPSConnection("127.0.0.1", port, context=contexts[name], timeout=30)
        try:
            # Else an nginx that is about to end answers with other bytes.
            link.request("POST", "/v1/control/list-runs", headers={"Connection": "close"})
            return link.getresponse().status
        finally:
            link.close()

    down: Counter[str] = Counter()
    up: Counter[str] = Counter()
    logs: set[int] = set()

    def look() -> None:
        for name, (sent, got) in gate.traffic().items():
            down[name] += sent
            up[name] += got

    try:
        gate.open()
        assert ask("kitchen") == 403
        until(lambda: look() or down["kitchen"], "the first line")
        one = down["kitchen"], up["kitchen"]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(ROUNDS):
                asked = [pool.submit(ask, name) for name in ("kitchen", "attic") * EACH]
                while not all(answer.done() for answer in asked):
                    gate.keep()
                    logs.add((folder / "access.log.1").exists() and _inode(folder))
                assert {answer.result() for answer in asked} == {403}
        until(lambda: look() or up["attic"] >= ROUNDS * EACH * one[1], "the last line", 20)
    finally:
        gate.close()
    look()
    total = ROUNDS * EACH
    assert down == {"kitchen": (total + 1) * one[0], "attic": total * one[0]}
    assert up == {"kitchen": (total + 1) * one[1], "attic": total * one[1]}
    assert len(logs - {False}) >= 2, "put aside more than once"
    assert {path.name for path in folder.glob("access*")} == {"access.log", "access.log.1"}


def _inode(folder: Path) -> int:
    return (folder / "access.log.1").stat().st_ino
