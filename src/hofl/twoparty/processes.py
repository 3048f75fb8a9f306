"""Start the processes of a split run, show its steps, and say in one line why one ended early."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.experiment.rounds import Observer
from hofl.experiment.runs import RunDirectory
from hofl.twoparty.link import SERVER
from hofl.twoparty.roles import Job, play

LOOK = 0.2
"""Seconds between two looks at the records."""
GRACE = 5.0
"""Seconds for the others to end after the first."""
Play = Callable[[int, Job, Connection], None]


def train_in_processes(
    directory: RunDirectory,
    boundary: int,
    rounds: int,
    processes: int,
    observe: Observer,
    role: Play = play,
) -> None:
    """Train a run to its end: one server process, and ``processes`` of clients.

    Args:
        directory: the run; its server state is where training starts.
        boundary: b.
        rounds: T.
        processes: of clients.
        observe: hears of every step.
        role: what runs in a process.

    Raises:
        HoflError: a process was killed or failed; what was recorded can be resumed.
    """
    context = multiprocessing.get_context("spawn")  # forking a process with threads deadlocks
    with tempfile.TemporaryDirectory() as folder:
        job = Job(directory.path, boundary, processes, Path(folder) / "rendezvous", os.getpid())
        started: list[tuple[BaseProcess, Connection]] = []
        try:
            for rank in range(processes + 1):
                here, there = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=role, args=(rank, job, there), daemon=True
                )
                process.start()
                there.close()
                started.append((process, here))
            _watch(directory, rounds, started, observe)
        finally:
            for process, _ in started:
                process.kill()
                process.join()


def _watch(
    directory: RunDirectory,
    rounds: int,
    started: list[tuple[BaseProcess, Connection]],
    observe: Observer,
) -> None:
    """Report steps until the server ends; raise if any process does not end well.

    An exit code says less than the records: a script that is imported again leaves 0.
    """
    seen, size = len(directory.metrics()), 0
    metrics = directory.path / "metrics.jsonl"
    sentinels = [process.sentinel for process, _ in started]
    while True:
        ended = wait(sentinels, timeout=LOOK)
        if metrics.stat().st_size != size:
            size = metrics.stat().st_size
            for record in directory.metrics()[seen:]:
                observe("round", record.to_json())
                seen += 1
        if not ended:
            observe("waiting", {})
            continue
        well = all(process.exitcode in (0, None) for process, _ in started)
        for process, _ in started:
            process.join(GRACE if well else GRACE / 5)
        if started[SERVER][0].exitcode == 0 and directory.metrics()[-1].round == rounds:
            return
        raise HoflError(
            f"{_why(started)}. The last good step is kept; resume with "
            f"hofl split --resume {directory.path}"
        )


def _why(started: list[tuple[BaseProcess, Connection]]) -> str:
    """Say what ended first: a process that was killed, or one that failed."""
    for rank, (process, _) in enumerate(started):
        if process.exitcode is not None and process.exitcode < 0:
            number = signal.Signals(-process.exitcode).name
            return f"{_name(rank)} was killed ({number})"
    reasons = [
        (f"{_name(rank)}: " if rank != SERVER else "") + _line(pipe)
        for rank, (process, pipe) in enumerate(started)
        if process.exitcode not in (0, None)
    ]
    return reasons[0] if reasons else "a process ended too early, or did not end"


def _name(rank: int) -> str:
    return "the server process" if rank == SERVER else f"client process {rank}"


def _line(pipe: Connection) -> str:
    try:
        return str(pipe.recv()).rstrip(".") if pipe.poll() else "failed (see above)"
    except EOFError:
        return "failed (see above)"
