"""Real servers and devices on 127.0.0.1 for the network tests, and the end of every one of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from hofl.client import LocalClient
from hofl.engines.in_process import InProcess
from hofl.engines.rounds import Failure, run_rounds
from hofl.experiment.build import build
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory
from hofl.messages import RoundPlan

PATIENCE = 420.0


def wait_until(happened: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll, within bounds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:g} s for {what}")


def note(fault: str, outcome: str, seconds: float) -> None:
    """One line for tools/measure_faults.py, if it is listening."""
    if path := os.environ.get("HOFL_FAULTS"):
        with Path(path).open("a") as file:
            file.write(json.dumps([fault, outcome, round(seconds)]) + "\n")


class Deployment:
    """A server and devices as separate processes; leaving the context ends all of them.

    Args:
        config: of the run.
        folder: for everything that is written.
        port: of the server, on 127.0.0.1.
        tls: folder of certificates, for a server behind its gateway.
    """

    def __init__(
        self, config: ExperimentConfig, folder: Path, port: int, tls: Path | None = None
    ) -> None:
        self.folder, self.port, self.run, self.tls = folder, port, folder / "run", tls
        self.source = folder / "config.toml"
        self.source.write_text(tomli_w.dumps(config.model_dump(exclude_none=True)))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[int, psutil.Process] = {}

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for one in psutil.wait_procs(list(self._seen.values()), timeout=15)[1]:
            one.kill()

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "hofl.cli.main", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def serve(self) -> None:
        """Start the server, or go on with its run."""
        words = ["--address", f"127.0.0.1:{self.port}", "--out", str(self.run), "--resume"]
        if self.tls is not None:
            words += ["--tls", str(self.tls), "--nodes", str(self.tls / "keys")]
        self._start("server", "server", str(self.source), *words)

    def add(self, number: int, boundary: int) -> None:
        """Start a device with its shard of the task."""
        home = self.folder / f"home-{number}"
        words = ["--server", f"127.0.0.1:{self.port}", "--shard", str(number)]
        words += ["--boundary", str(boundary), "--name", f"device-{number}", "--home", str(home)]
        if self.tls is not None:
            words += ["--tls", str(self.tls / "devices" / f"device-{number}")]
        self._start(f"device-{number}", "device", *words, "--threads", "1", "--nice", "0")

    def rows(self) -> list[dict[str, Any]]:
        """Rounds recorded so far."""
        return RunDirectory(self.run).metrics()

    def family(self, name: str) -> list[psutil.Process]:
        """A process and everything it started, also what was seen earlier."""
        try:
            parent = psutil.Process(self.processes[name].pid)
            found = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self._seen |= {one.pid: one for one in found}
        return found

    def kill(self, name: str, pattern: str = "") -> int:
        """Kill -9 of a process, or of the one in its family whose command matches."""
        found = self.pids(name, pattern)
        if not found:
            raise AssertionError(f"{name} has no process like {pattern!r}")
        own = self.processes[name]
        pid = own.pid if own.pid in found else min(found)
        os.kill(pid, signal.SIGKILL)
        if pid == own.pid:
            own.wait()
        return pid

    def pids(self, name: str, pattern: str = "") -> set[int]:
        """The processes of a family whose command matches."""
        found = set()
        for one in self.family(name):
            try:
                if re.search(pattern, " ".join(one.cmdline())):
                    found.add(one.pid)
            except psutil.Error:
                continue  # it has just ended
        return found

    def in_round(self, number: int, round_number: int) -> None:
        """Wait until a device is computing its plan of a round."""
        what = f"device {number} in round {round_number}"
        wait_until(lambda: self.computes(number, round_number), what)

    def computes(self, number: int, round_number: int) -> bool:
        """Whether a device has begun with its plan of a round."""
        self.check()
        log = self.folder / f"home-{number}" / "worker.log"
        return log.exists() and f"round {round_number}: boundary" in log.read_text()

    def finished(self, seconds: float = PATIENCE) -> None:
        """Wait for the summary."""

        def done() -> bool:
            self.check()
            return (self.run / "summary.json").exists()

        wait_until(done, "the end of the run", seconds)
        self.processes["server"].wait(60)

    def check(self) -> None:
        """A server that ended with an error fails the test at once."""
        code = self.processes["server"].poll()
        if code:
            raise AssertionError((self.folder / "server.out").read_text()[-2000:])

    def leftovers(self) -> list[str]:
        """Processes that were started for this deployment and are still there."""
        return _mentioning(str(self.folder))

    def addresses(self) -> set[str]:
        """Where the processes of this deployment listen."""
        found = set()
        for name in self.processes:
            for one in self.family(name):
                try:
                    connections = one.net_connections(kind="inet")
                except psutil.Error:
                    continue
                found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        return found


def _mentioning(text: str) -> list[str]:
    """Commands of running processes that name a text in their words or environment."""
    found = []
    for one in psutil.process_iter():
        try:
            words = " ".join(one.cmdline())
            near = text in words or text in " ".join(one.environ().values())
            near = near and one.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            continue  # it has just ended
        if near and one.pid != os.getpid():
            found.append(words)
    return found


class Replayed(InProcess):
    """What happened on the network, once more in this process: who was there, who failed."""

    def __init__(self, client: LocalClient, rows: list[dict[str, Any]]) -> None:
        super().__init__(client)
        self._draws = iter([a for row in rows for a in (*row.get("repeats", ()), row)])
        self._row: dict[str, Any] = {}

    def join(self) -> dict[int, int]:  # type: ignore[override]
        self._row = next(self._draws)
        return {int(client): own for client, own in self._row["present"].items()}

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        for plan in plans:
            reason = self._row["refused"].get(str(RoundPlan.from_bytes(plan).client))
            yield Failure(reason) if reason else next(super().gather([plan]))


def replayed(config: ExperimentConfig, rows: list[dict[str, Any]], out: Path) -> Path:
    """The run that the recorded rows describe, computed in this process."""
    experiment = build(config)
    directory = RunDirectory.create(out, experiment.config)
    engine = Replayed(experiment.client, rows[1:])
    run_rounds(experiment, engine, directory, lambda *_: None)
    return directory.path
