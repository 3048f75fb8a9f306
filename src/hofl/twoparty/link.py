"""Messages between processes of one machine, by ``torch.distributed`` with gloo on 127.0.0.1.

A message is its length, then its bytes: the same bytes as in one process. Nothing is encrypted and
nobody proves who they are, so connections stay on the loopback interface, whatever the environment
says (``GLOO_SOCKET_IFNAME``).
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from hofl.core.errors import HoflError, printable, reason_of
from hofl.core.wire import message_kind, unpack_message
from hofl.twoparty.exchange import Message, MessageRefused
from hofl.twoparty.server import SplitServer

SERVER = 0
IDLE = timedelta(days=365)
"""A client may wait that long for its turn; a server that is gone closes the connection."""
CALL, OVER, STOP, REFUSED = "call", "over", "stop", "refused"
"""Kinds of messages around those of a turn: its start, its end, the run's end, a refusal."""


class PeerLost(HoflError):
    """The other process is gone, silent for too long, or sends what is not a message."""


class Link:
    """This process's end of the connections to the others.

    Args:
        rendezvous: a fresh file by which the processes find each other.
        rank: of this process; the server's is 0.
        world: number of processes.
        deadline: seconds that an answer may take.
        most: bytes that a message may have.
    """

    def __init__(self, rendezvous: Path, rank: int, world: int, deadline: float, most: int) -> None:
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
        self._deadline, self._most = timedelta(seconds=deadline), most
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world,
                timeout=self._deadline,
            )
        except RuntimeError as error:
            raise PeerLost(f"the processes did not find each other: {reason_of(error)}") from None

    def send(self, data: bytes, to: int) -> None:
        """Send a message."""
        length = torch.tensor([len(data)])
        self._trying(to, lambda: dist.isend(length, to), self._deadline)
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._trying(to, lambda: dist.isend(whole, to), self._deadline)

    def receive(self, source: int, patience: timedelta | None = None) -> bytes:
        """Return the next message of a process."""
        length = torch.zeros(1, dtype=torch.int64)
        self._trying(source, lambda: dist.irecv(length, source), patience or self._deadline)
        size = int(length)
        if not 0 < size <= self._most:
            raise PeerLost(f"{_name(source)} announced {size} bytes, allowed are 1..{self._most}")
        data = torch.empty(size, dtype=torch.uint8)
        self._trying(source, lambda: dist.irecv(data, source), self._deadline)
        return data.numpy().tobytes()

    def close(self) -> None:
        """End the connections."""
        dist.destroy_process_group()

    def _trying(self, rank: int, start: Callable[[], object], patience: timedelta) -> None:
        try:
            work = start()
            assert isinstance(work, dist.Work)
            work.wait(patience)
        except RuntimeError as error:
            reason = reason_of(error)
            if "Timed out" in reason or "timeout" in reason.lower():
                seconds = patience.total_seconds()
                reason = f"no answer within {seconds:g} s (server.deadline)"
            raise PeerLost(f"lost {_name(rank)}: {reason}") from None


def _is_over(data: bytes) -> bool:
    """Tell whether a message ends a turn; what cannot be read is for the server to refuse."""
    try:
        return message_kind(data, MessageRefused) == OVER
    except MessageRefused:
        return False


def _name(rank: int) -> str:
    return "the server" if rank == SERVER else f"client process {rank}"


@dataclass(frozen=True)
class LinkedServer:
    """A channel to the server in another process."""

    link: Link

    def request(self, message: bytes) -> bytes:
        """Return the server's answer; raise what it refused the message for."""
        self.link.send(message, SERVER)
        answer = self.link.receive(SERVER)
        if message_kind(answer, MessageRefused) == REFUSED:
            raise MessageRefused(reason_in(answer))
        return answer


class LinkedClients:
    """The engine of a server whose clients are in other processes; client i in 1 + i mod n.

    A message that is refused ends the client's turn, and the step continues without it. One that
    cannot even be received ends the run: nobody could say where the next one starts.

    Args:
        server: answers.
        link: to the client processes.
        processes: n.
    """

    def __init__(self, server: SplitServer, link: Link, processes: int) -> None:
        self._server, self._link, self._processes = server, link, processes
        self.client_peak = 0

    def turn(self, client: int) -> str | None:
        """Call a client and answer it until its turn is over."""
        rank, step = 1 + client % self._processes, self._server.step
        self._link.send(Message(CALL, step, client).to_bytes(), rank)
        refusal = None
        while True:
            data = self._link.receive(rank)
            try:
                if _is_over(data):
                    return refusal or self._ended(Message.from_bytes(data, OVER, step, client))
                if refusal is not None:
                    raise PeerLost(f"{_name(rank)} went on after it was refused: {refusal}")
                answer = self._server.answer(client, data)
            except MessageRefused as error:
                refusal = reason_of(error)
                answer = Message(REFUSED, step, client, fields={"reason": refusal}).to_bytes()
            self._link.send(answer, rank)

    def stop(self) -> None:
        """Tell the client processes that the run has ended."""
        for rank in range(1, self._processes + 1):
            self._link.send(Message(STOP, self._server.step, 0).to_bytes(), rank)

    def _ended(self, over: Message) -> str | None:
        peak, reason = over.fields.get("peak"), over.fields.get("reason")
        if type(peak) is int:
            self.client_peak = max(self.client_peak, peak)
        return None if reason is None else printable(reason)


def reason_in(refusal: bytes) -> str:
    """Return the reason that a refusal gives."""
    header, _ = unpack_message(REFUSED, refusal, MessageRefused)
    fields = header.get("fields")
    return printable(fields.get("reason") if isinstance(fields, dict) else "no reason given")
