"""Flower's own commands: their words, their environment, and the paths that nodes call."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import tomli_w

from hofl.core.errors import HoflError
from hofl.deploy.guard import guarded
from hofl.deploy.keys import Identity, ServerFiles

CONNECTION = "hofl"
"""Name of the SuperLink in Flower's configuration file."""
SUBMIT_SECONDS = 180.0
CHUNK = 5 * 2**20
"""Flower cuts arrays into objects of this many bytes."""
FLEET_PATHS = tuple(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""What a registered device calls: plain HTTP/1.1 requests that end at once, no long polls.

The SuperLink serves its control interface on the same port, and registering devices is the server's
own business: neither is listed here.
"""


def check_installed() -> None:
    """Refuse to start without Flower."""
    if find_spec("flwr") is None:
        raise HoflError("this command needs Flower: pip install 'hofl[flower]'.")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: own folder, no telemetry, our programs."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return {
        **os.environ,
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def superlink(host: str, port: int, database: Path, tls: ServerFiles | None) -> list[str]:
    """Return the SuperLink's command; without TLS it takes anyone, so it stays on loopback."""
    words = [*guarded([_executable("flower-superlink")]), "--host", host, "--port", str(port)]
    words += ["--database", str(database), "--isolation", "subprocess"]
    words += ["--disable-runtime-dependency-installation"]
    if tls is None:
        return [*words, "--insecure"]
    certificate, key = tls.pair
    words += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(certificate)]
    return [*words, "--ssl-keyfile", str(key), "--enable-supernode-auth"]


def supernode(server: str, port: int, socket: Path, identity: Identity | None = None) -> list[str]:
    """Return the command of a device's node; ``port`` is for its own processes, on loopback."""
    words = [*guarded([_executable("flower-supernode")]), "--superlink", server]
    words += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "subprocess"]
    words += ["--node-config", f"socket={json.dumps(str(socket))}"]
    if identity is None:
        return [*words, "--insecure"]
    words += ["--root-certificates", str(identity.ca.resolve())]
    return [*words, "--auth-supernode-private-key", str(identity.private_key)]


def write_connection(home: Path, address: str, tls: ServerFiles | None) -> None:
    """Write where Flower's command line finds the SuperLink."""
    fields = {"address": address}
    secured = {"insecure": True} if tls is None else {"root-certificates": str(tls.ca)}
    text = tomli_w.dumps({"superlink": {CONNECTION: {**fields, **secured}}})
    (home / "config.toml").write_text(text)


def submit(home: Path, socket: Path) -> None:
    """Start a run of the bundled app, whose server part connects to ``socket``."""
    folder = home / "hofl-app"
    shutil.rmtree(folder, ignore_errors=True)
    with as_file(files("hofl.deploy.flower") / "app") as bundled:
        shutil.copytree(bundled, folder, ignore=shutil.ignore_patterns("__pycache__"))
    setting = f"socket={json.dumps(str(socket))}"
    flwr(home, "run", str(folder), CONNECTION, "--run-config", setting, "--format", "json")


def register(home: Path, key: Path) -> str:
    """Register a device's public key under its name; return its node, empty if it was known."""
    words = ["supernode", "register", str(key), CONNECTION, "--name", key.stem]
    try:
        printed = flwr(home, *words, "--format", "json")
    except HoflError as error:
        if "already" not in str(error):
            raise
        return ""
    number = re.search(r'"node-id": *"?(\d+)', printed)
    return "" if number is None else number[1]


def unregister(home: Path, node: str) -> None:
    """Unregister a node: it gets no more messages. One that is not known may be gone."""
    try:
        flwr(home, "supernode", "unregister", node, CONNECTION, "--format", "json")
    except HoflError as error:
        if "not found" not in str(error).lower():
            raise


def flwr(home: Path, *words: str) -> str:
    """Run Flower's command line and return what it prints."""
    try:
        done = subprocess.run(
            [_executable("flwr"), *words],
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=SUBMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HoflError(f"flwr {words[0]} did not end within {SUBMIT_SECONDS:g} s.") from None
    printed = done.stdout + done.stderr
    if done.returncode or '"success": false' in printed.replace("'", '"').lower():
        raise HoflError(f"flwr {words[0]} failed: {' '.join(printed.split())[-400:]}")
    return done.stdout


def _executable(name: str) -> str:
    """Return the program of the environment that runs hofl, else that of the path."""
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.is_file() else shutil.which(name)
    if program is None:
        raise HoflError(f"cannot find {name}: pip install 'hofl[flower]'.")
    return program
