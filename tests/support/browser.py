"""A real headless Chromium, driven by the protocol of its developer tools over a pipe."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 120
"""Seconds until a browser that does not answer is given up."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One tab: what it shows, asks of the network and complains about."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._rest, self._number = b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, noting events until its answer comes."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: Path | str, width: int = 1200, *, dark: bool = False) -> None:
        """Open a file or an address and wait until its figures are drawn."""
        self.resize(width)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.requests.clear()
        self.complaints.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.run("new Promise(go => document.readyState === 'complete' ? go() : onload = go)")
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def settle(self) -> None:
        """Wait until two frames have been painted."""
        self.run("new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def run(self, script: str) -> Any:
        """Return the value of a script; an error in it is raised here."""
        options = {"returnByValue": True, "awaitPromise": True}
        done = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until a script's value is true; it is asked again at every frame."""
        self.run(f"""new Promise((go, fail) => {{
            const last = Date.now() + {1000 * PATIENCE};
            const look = () => ({condition}) ? go()
                : Date.now() < last ? requestAnimationFrame(look) : fail(new Error("never true"));
            look();
        }})""")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as an image, for people."""
        options = {"format": "png", "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._receive, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, facts: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
            self.complaints.append(str(facts["args"]))
        elif method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(facts["entry"]["text"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium with a profile of its own, and end it."""
    assert CHROMIUM, "chromium is needed to look at pages: apt-get install chromium"
    to_read, to_send = os.pipe()
    to_receive, to_answer = os.pipe()

    def as_three_and_four() -> None:
        # The numbers that the browser expects; by copies, since the pipes may be 3 or 4 themselves.
        read, write = os.dup(to_read), os.dup(to_answer)
        os.dup2(read, 3)
        os.dup2(write, 4)

    with tempfile.TemporaryDirectory() as profile:
        words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        words += ["--disable-dev-shm-usage", "--disable-background-networking", "about:blank"]
        process = subprocess.Popen(
            words,
            preexec_fn=as_three_and_four,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_answer)
        try:
            yield Browser(to_send, to_receive)
        finally:
            os.close(to_send)  # which ends it
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(to_receive)
