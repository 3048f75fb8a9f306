"""A device's supervisor: keeps the resident worker and the transport's node running."""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from hofl.engines.network.processes import Backoff, Child, stop_all, undisturbed
from hofl.engines.network.settings import WorkerSettings

NodeCommand = Callable[[Path], Sequence[str]]
"""Socket of the worker -> the words that start the transport's node."""
LEASE = 65.0
"""Seconds for which the server refuses a restarted node with a key: its old lease runs on."""

log = logging.getLogger("hofl.device")


def run_device(
    settings: WorkerSettings,
    node: NodeCommand,
    environment: dict[str, str],
    home: Path,
    niceness: int,
) -> None:
    """Run until SIGTERM or Ctrl-C, restarting what dies; leaves no process behind.

    Args:
        settings: the worker's; socket and offer are filled in here.
        node: how the transport's node is started.
        environment: of both children.
        home: folder for logs.
        niceness: of the worker, which does the computing.
    """
    home.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _end)
    # Unix sockets have short names: a private folder in the system's temporary one.
    with tempfile.TemporaryDirectory(prefix="hofl-") as private:
        socket = Path(private) / "worker"
        own = replace(settings, socket=str(socket), offer=str(home / "offer.toml"))
        worker = Child(
            "worker",
            lambda: [sys.executable, "-m", "hofl.engines.network.worker", own.to_json()],
            home / "worker.log",
            {**os.environ, "PYTHONUNBUFFERED": "1"},
            niceness,
        )
        link = Child("node", lambda: node(socket), home / "node.log", environment)
        try:
            _keep_running([(worker, Backoff(1.0, 30.0)), (link, Backoff(5.0, LEASE))])
        except KeyboardInterrupt:
            log.info("stopping")
        finally:
            with undisturbed():
                stop_all([link, worker])


def _keep_running(children: list[tuple[Child, Backoff]]) -> None:
    seen: set[str] = set()
    while True:
        for child, backoff in children:
            if not child.alive() and backoff.ready():
                if child.name in seen:
                    log.warning("%s ended (%s): restarting", child.name, child.last_words())
                seen.add(child.name)
                child.start()
        time.sleep(0.5)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
