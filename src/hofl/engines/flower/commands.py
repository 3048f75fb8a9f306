"""Flower's own commands: their words, their environment, and what they must not do."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

import tomli_w

from hofl.errors import HoflError

CONNECTION = "hofl"
"""Name of the SuperLink in Flower's configuration file."""
SUBMIT_SECONDS = 180.0


@dataclass(frozen=True)
class Certificates:
    """Files of a TLS folder.

    Args:
        folder: holds ``ca.crt``, and on the server ``server.crt`` and ``server.key``.
    """

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate that both sides trust."""
        return self._existing("ca.crt")

    @property
    def server(self) -> tuple[Path, Path]:
        """The server's certificate and key."""
        return self._existing("server.crt"), self._existing("server.key")

    def check_server(self) -> None:
        """Refuse a folder that a server cannot use."""
        _ = self.ca, self.server

    def _existing(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise HoflError(f"no file {path}: make certificates with hofl certs.")
        return path.resolve()


def check_installed() -> None:
    """Refuse to go on without Flower."""
    if find_spec("flwr") is None:
        raise HoflError("this command needs Flower: pip install 'hofl[flower]'.")


def environment(home: Path) -> dict[str, str]:
    """For all of Flower's processes: a private folder, no telemetry, our own executables first."""
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


def superlink(host: str, port: int, database: Path, tls: Certificates | None) -> list[str]:
    """The server's hub; without TLS it takes anyone, so it must stay on loopback."""
    words = [_executable("flower-superlink"), "--host", host, "--port", str(port)]
    words += ["--database", str(database), "--isolation", "subprocess"]
    words += ["--disable-runtime-dependency-installation"]
    if tls is None:
        return [*words, "--insecure"]
    certificate, key = tls.server
    words += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(certificate)]
    return [*words, "--ssl-keyfile", str(key), "--enable-supernode-auth"]


def supernode(
    server: str, port: int, socket: Path, tls: Certificates | None, key: Path | None
) -> list[str]:
    """A device's node; ``port`` is for its own processes, on loopback."""
    words = [_executable("flower-supernode"), "--superlink", server]
    words += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "subprocess"]
    words += ["--node-config", f"socket={json.dumps(str(socket))}"]
    if tls is None:
        return [*words, "--insecure"]
    words += ["--root-certificates", str(tls.ca)]
    return [*words, "--auth-supernode-private-key", str(key)] if key is not None else words


def write_connection(home: Path, address: str, tls: Certificates | None) -> None:
    """Tell Flower's command line where the SuperLink is."""
    fields = {"address": address}
    secured = {"insecure": True} if tls is None else {"root-certificates": str(tls.ca)}
    text = tomli_w.dumps({"superlink": {CONNECTION: {**fields, **secured}}})
    (home / "config.toml").write_text(text)


def submit(home: Path, socket: Path) -> None:
    """Start a run of the bundled app, whose server part connects to ``socket``."""
    folder = home / "hofl-app"
    shutil.rmtree(folder, ignore_errors=True)
    with as_file(files("hofl.engines.flower") / "app") as bundled:
        shutil.copytree(bundled, folder, ignore=shutil.ignore_patterns("__pycache__"))
    setting = f"socket={json.dumps(str(socket))}"
    flwr(home, "run", str(folder), CONNECTION, "--run-config", setting, "--format", "json")


def register(home: Path, key: Path) -> None:
    """Let the device with this public key in, under the key's name; once is enough."""
    words = ["supernode", "register", str(key), CONNECTION, "--name", key.stem]
    try:
        flwr(home, *words, "--format", "json")
    except HoflError as error:
        if "already" not in str(error):
            raise


def flwr(home: Path, *words: str) -> str:
    """Run Flower's command line; what it prints."""
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
    said = done.stdout + done.stderr
    if done.returncode or '"success": false' in said.replace("'", '"').lower():
        raise HoflError(f"flwr {words[0]} failed: {_short(said)}")
    return done.stdout


def _short(said: str) -> str:
    return " ".join(said.split())[-400:]


def _executable(name: str) -> str:
    """Of the environment that runs hofl, else of the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise HoflError(f"cannot find {name}: pip install 'hofl[flower]'.")
    return found


def public_keys(folder: Path) -> Sequence[Path]:
    """The devices' public keys, ``NAME.pub``."""
    found = sorted(folder.glob("*.pub"))
    if not found:
        raise HoflError(f"{folder} holds no device keys (NAME.pub): make them with hofl certs.")
    return found
