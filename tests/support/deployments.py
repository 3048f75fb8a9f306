"""Real servers and devices on 127.0.0.1 for the network tests; each test ends all it started."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from hofl.engines.base import DeviceOffer, Dispatch, Failure
from hofl.engines.client import LocalClient
from hofl.engines.local import InProcess
from hofl.experiment.build import build_simulation
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.records import Attempt, RoundRecord
from hofl.experiment.rounds import run_rounds
from hofl.experiment.runs import RunDirectory

PATIENCE = 420.0


def wait_until(
    happened: Callable[[], Any], what: str, seconds: float = PATIENCE, pause: float = 0.1
) -> Any:
    """Poll, within bounds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if outcome := happened():
            return outcome
        time.sleep(pause)
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
        self._halted: set[int] = set()

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
        for process in psutil.wait_procs(list(self._seen.values()), timeout=15)[1]:
            process.kill()

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "hofl.cli.main", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def serve(self) -> None:
        """Start the server, or resume its run."""
        words = ["--address", f"127.0.0.1:{self.port}", "--out", str(self.run), "--resume"]
        if self.tls is not None:
            words += ["--tls", str(self.tls), "--nodes", str(self.tls / "keys")]
        self._start("server", "server", str(self.source), *words)

    def add(self, number: int, boundary: int | None = None, *options: str) -> None:
        """Start a device with its shard of the task: at a boundary, or one that plans its own."""
        home = self.folder / f"home-{number}"
        words = ["--server", f"127.0.0.1:{self.port}", "--shard", str(number), *options]
        words += ["--name", f"device-{number}", "--home", str(home)]
        if boundary is not None:
            words += ["--boundary", str(boundary)]
        if self.tls is not None:
            words += ["--tls", str(self.tls / "devices" / f"device-{number}")]
        self._start(f"device-{number}", "device", *words, "--threads", "1", "--nice", "0")

    def rows(self) -> list[RoundRecord]:
        """Rounds recorded so far."""
        return RunDirectory(self.run).metrics()

    def family(self, name: str) -> list[psutil.Process]:
        """A process and everything it started, also what was seen earlier."""
        try:
            parent = psutil.Process(self.processes[name].pid)
            family = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        self._seen |= {process.pid: process for process in family}
        return family

    def kill(self, name: str, pattern: str = "") -> int:
        """Kill -9 of a process, or of the first in its family whose command matches."""
        matching = self.pids(name, pattern)
        if not matching:
            raise AssertionError(f"{name} has no process like {pattern!r}")
        parent = self.processes[name]
        pid = parent.pid if parent.pid in matching else min(matching)
        os.kill(pid, signal.SIGKILL)
        if pid == parent.pid:
            parent.wait()
        return pid

    def pids(self, name: str, pattern: str = "") -> set[int]:
        """The processes of a family whose command matches."""
        matching = set()
        for process in self.family(name):
            try:
                if re.search(pattern, " ".join(process.cmdline())):
                    matching.add(process.pid)
            except psutil.Error:
                continue  # it has just ended
        return matching

    def halt(
        self,
        number: int,
        round_number: int,
        computing: bool = False,
        pattern: str = r"deploy\.worker",
    ) -> None:
        """Stop a device's worker (SIGSTOP) as soon as a round begins, or its own computing does.

        No device is so quick that it has answered when a round begins, and a halted one cannot
        answer later. Whether it was caught while it computed, the round's record shows.
        """

        def begun() -> bool:
            self.check()
            return self.computes(number, round_number) or (
                not computing and len(self.rows()) >= round_number
            )

        wait_until(begun, f"the beginning of round {round_number}", pause=0.005)
        self._halted |= self.pids(f"device-{number}", pattern)
        self._signal(signal.SIGSTOP)

    def release(self) -> None:
        """Let halted workers continue, those whose parents are gone too."""
        self._signal(signal.SIGCONT)
        self._halted = set()

    def _signal(self, what: signal.Signals) -> None:
        for pid in self._halted:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

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
        self.processes["server"].wait(PATIENCE)

    def check(self) -> None:
        """A server that ended with an error fails the test at once."""
        code = self.processes["server"].poll()
        if code:
            raise AssertionError((self.folder / "server.out").read_text()[-2000:])

    def leftovers(self) -> list[str]:
        """Processes that were started for this deployment and are still there."""
        return _mentioning(str(self.folder))

    def addresses(self) -> set[str]:
        """The hosts on which the processes of this deployment listen."""
        return {place.rpartition(":")[0] for place in self.listening()}

    def announced(self) -> set[str]:
        """Where server and devices say that they listen, as HOST:PORT."""
        said = [path.read_text() for path in self.folder.glob("*.out")]
        return set(re.findall(r"listening on ([\d.]+:\d+)", "".join(said)))

    def listening(self) -> set[str]:
        """Where the processes of this deployment listen, as HOST:PORT."""
        places = set()
        for name in self.processes:
            for process in self.family(name):
                try:
                    connections = process.net_connections(kind="inet")
                except psutil.Error:
                    continue
                open_ones = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
                places |= {f"{place.ip}:{place.port}" for place in open_ones}
        return places


def _mentioning(text: str) -> list[str]:
    """Commands of running processes that name a text in their words or environment."""
    commands = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            near = text in words or text in " ".join(process.environ().values())
            near = near and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            continue  # it has just ended
        if near and process.pid != os.getpid():
            commands.append(words)
    return commands


class Replayed(InProcess):
    """What happened on the network, repeated in this process: who was present, who failed."""

    def __init__(self, client: LocalClient, rows: list[RoundRecord]) -> None:
        super().__init__(client)
        self._draws = iter([a for row in rows for a in row.attempts])
        self._row = Attempt()

    def join(self) -> dict[int, DeviceOffer]:  # type: ignore[override]
        self._row = next(self._draws)
        rules = self._row.rules
        there = (self._row.present or {}).items()
        return {client: DeviceOffer(b, rule=rules.get(client, {})) for client, b in there}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for dispatch in dispatches:
            reason = self._row.refused.get(dispatch.plan.client)
            yield Failure(reason) if reason else next(super().gather([dispatch]))


def replayed(config: ExperimentConfig, rows: list[RoundRecord], out: Path) -> Path:
    """The run that the recorded rows describe, computed in this process."""
    experiment = build_simulation(config)
    directory = RunDirectory.create(out, experiment.config, experiment.secret)
    engine = Replayed(experiment.client, rows[1:])
    run_rounds(experiment, engine, directory, lambda *_: None)
    return directory.path
