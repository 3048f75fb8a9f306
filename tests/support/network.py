"""Real servers on 127.0.0.1 for tests; all that is started is ended, with its children."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT = 120.0
"""Seconds until something that should happen counts as failed; all loops here end by it."""


def executable(name: str) -> str | None:
    """A command of the environment that runs the tests, or of the system."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


NGINX = pytest.mark.skipif(
    executable("nginx") is None and not Path("/usr/sbin/nginx").exists(),
    reason="NOT SHOWN: nothing was tried through a real gateway, because nginx is not installed "
    "(apt-get install nginx-light)",
)
"""For tests of the real gateway; without nginx only the text of its configuration is checked."""


def until(happened: Callable[[], object], what: str, wait: float = WAIT) -> None:
    end = time.monotonic() + wait
    while not happened():
        assert time.monotonic() < end, f"not within {wait:g} s: {what}"
        time.sleep(0.2)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(words: list[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of its own; ended on the way out."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    continue


def flower_environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def flwr(home: Path, *words: str, timeout: float = WAIT) -> tuple[int, str]:
    """Flower's command line: exit code and what it says."""
    command = executable("flwr")
    assert command is not None
    done = subprocess.run(
        [command, *words],
        env=flower_environment(home),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def connection(home: Path, address: str, ca: Path) -> None:
    """Tell Flower's command line where the SuperLink is, under the name ``test``."""
    home.mkdir(parents=True, exist_ok=True)
    text = f'[superlink.test]\naddress = "{address}"\nroot-certificates = "{ca}"\n'
    (home / "config.toml").write_text(text)


def json_in(text: str) -> dict:
    """The JSON object among other lines."""
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


_PROJECT = """\
[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "test"

[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"
"""
_SERVER = """\
import time
import numpy as np
from flwr.app import ArrayRecord, Array, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    end = time.monotonic() + 90
    while not (nodes := list(grid.get_node_ids())):
        assert time.monotonic() < end, "no node"
        time.sleep(1)
    sent = np.arange(2_000_000, dtype=np.float32)
    content = RecordDict({"w": ArrayRecord({"w": Array(sent)})})
    replies = list(grid.send_and_receive(
        [Message(content, node, "train", group_id="1", ttl=90) for node in nodes], timeout=90))
    assert len(replies) == len(nodes), "missing replies"
    for reply in replies:
        assert not reply.has_error(), reply.error
        assert (reply.content["w"]["w"].numpy() == 2 * sent).all()
    print("echo: all nodes answered", len(replies))
"""
_CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    doubled = Array(2 * message.content["w"]["w"].numpy())
    return Message(RecordDict({"w": ArrayRecord({"w": doubled})}), reply_to=message)
"""


def echo_app(folder: Path) -> Path:
    """A Flower app whose nodes double 8 MB of numbers."""
    package = folder / "echo"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(_SERVER)
    (package / "client.py").write_text(_CLIENT)
    return folder
