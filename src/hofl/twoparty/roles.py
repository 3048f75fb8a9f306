"""What runs in the processes of a split run: one server with the top, clients with the bottom."""

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from hofl.core.errors import HoflError, reason_of
from hofl.core.process import end_with
from hofl.core.wire import message_kind
from hofl.experiment.records import RoundRecord
from hofl.experiment.runs import RunDirectory
from hofl.memory.live import LiveBytes
from hofl.models.halves import Half, half_bytes
from hofl.twoparty.build import batches_of, build_side, cohorts_of
from hofl.twoparty.client import SplitClient
from hofl.twoparty.exchange import Message, MessageRefused, step_and_client
from hofl.twoparty.link import CALL, IDLE, OVER, SERVER, STOP, Link, LinkedClients, LinkedServer
from hofl.twoparty.server import most_bytes
from hofl.twoparty.store import ClientStore, load_server, save_server
from hofl.twoparty.training import train

MEASURED = 5
"""Turns of a process in which memory is measured: texts differ in length, measuring takes time."""


@dataclass(frozen=True)
class Job:
    """What every process of a run is given.

    Args:
        path: the run's folder.
        boundary: b.
        processes: of clients.
        rendezvous: file by which they find each other.
        parent: process that started them, with which they end.
    """

    path: Path
    boundary: int
    processes: int
    rendezvous: Path
    parent: int


def play(rank: int, job: Job, failure: Connection) -> None:
    """Run the role of a rank to its end; a failure is one line through ``failure``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    end_with(job.parent)
    try:
        (serve if rank == SERVER else work)(rank, job)
    except HoflError as error:
        failure.send(reason_of(error))
        failure.close()
        os._exit(1)  # without waiting for connections that may hang


def serve(rank: int, job: Job) -> None:
    """Hold the top, lead the steps, record them."""
    directory = RunDirectory.open(job.path)
    config = directory.config()
    side = build_side(config, Half.TOP, job.boundary)
    model, setting = side.model.split, side.setting
    server = setting.workflow.server(model, setting)
    load_server(directory.checkpoint, server)
    held = half_bytes(model, Half.TOP, job.boundary) + server.top.size_bytes + server.kept.nbytes
    counter = LiveBytes(model.device)
    link = Link(job.rendezvous, rank, job.processes + 1, side.deadline, server.most_bytes)
    engine = LinkedClients(server, link, job.processes)
    cohorts = cohorts_of(config, side.method, directory.secret())

    def record(made: RoundRecord) -> None:
        if engine.client_peak:
            made = replace(
                made,
                peak_bytes=engine.client_peak,
                peak_by_boundary={job.boundary: engine.client_peak},
            )
        if os.getppid() != job.parent:  # a resumed run may be at work on the folder
            raise HoflError("the process that started the run is gone")
        directory.record(replace(made, server_peak_bytes=held + counter.peak))
        save_server(directory.checkpoint, server)

    with counter:  # the first step alone: measuring takes time
        train(server, engine, cohorts, min(server.step + 1, side.rounds), record)
    train(server, engine, cohorts, side.rounds, record)
    engine.stop()
    link.close()


def work(rank: int, job: Job) -> None:
    """Hold the bottom, and take the turns of this process's clients."""
    directory = RunDirectory.open(job.path)
    config = directory.config()
    side = build_side(config, Half.BOTTOM, job.boundary)
    model, setting, store = side.model.split, side.setting, ClientStore(directory.checkpoint)
    start, data = model.w.clone(), batches_of(config, side.method, side.model)
    most = most_bytes(model.config.get_text_config().hidden_size, len(start))
    link = Link(job.rendezvous, rank, job.processes + 1, side.deadline, most)
    clients: dict[int, SplitClient] = {}
    peak, turns = 0, 0
    while True:
        data_in = link.receive(SERVER, IDLE)
        kind = message_kind(data_in, MessageRefused)
        if kind == STOP:
            link.close()
            return
        step, number = step_and_client(data_in, CALL)
        if number not in clients:
            model.load(start)
            clients[number] = setting.workflow.client(model, setting, number, data, store)
        fields: dict[str, object] = {}
        counter, client = LiveBytes(model.device), clients[number]
        held = half_bytes(model, Half.BOTTOM, job.boundary) + client.state_bytes
        try:
            with counter if turns < MEASURED else nullcontext():
                client.take_turn(step, LinkedServer(link))
            turns += 1
            peak = max(peak, held + counter.peak)
        except MessageRefused as refusal:
            fields["reason"] = reason_of(refusal)
        over = Message(OVER, step, number, fields={**fields, "peak": peak})
        link.send(over.to_bytes(), SERVER)
