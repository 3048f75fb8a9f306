"""The loop of steps, and the engine that runs both roles in one process."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hofl.core.errors import reason_of
from hofl.experiment.records import RoundRecord
from hofl.twoparty.client import SplitClient
from hofl.twoparty.exchange import MessageRefused
from hofl.twoparty.server import SplitServer


class SplitEngine(Protocol):
    """How clients reach the server."""

    def turn(self, client: int) -> str | None:
        """Let a client take part in the step under way; return why it was refused, or None."""
        ...


class OneProcess:
    """All clients and the server in one process; every message is serialised all the same."""

    def __init__(self, server: SplitServer, clients: Mapping[int, SplitClient]) -> None:
        self._server, self._clients = server, clients

    def turn(self, client: int) -> str | None:
        """Run a client's part of the step."""
        try:
            self._clients[client].take_turn(self._server.step, Direct(self._server, client))
        except MessageRefused as refusal:
            return reason_of(refusal)
        return None


@dataclass(frozen=True)
class Direct:
    """A channel to a server in the same process."""

    server: SplitServer
    client: int

    def request(self, message: bytes) -> bytes:
        """Return the server's answer."""
        return self.server.answer(self.client, message)


def train(
    server: SplitServer,
    engine: SplitEngine,
    cohort: Callable[[int], Sequence[int]],
    steps: int,
    record: Callable[[RoundRecord], None] = lambda record: None,
) -> None:
    """Run steps up to number ``steps``.

    Args:
        server: at its last state.
        engine: how clients reach it.
        cohort: clients of each step.
        steps: T.
        record: called after every step; what it does not keep is lost in a kill.
    """
    while server.step < steps:
        began, chosen, refused = time.perf_counter(), list(cohort(server.step)), {}
        server.begin(chosen)
        for client in chosen:
            reason = engine.turn(client)
            if reason is not None:
                server.drop(client)
                refused[client] = reason
        loss, examples = server.finish(refused)
        ledger = server.ledger
        record(
            RoundRecord(
                round=server.step,
                cohort=chosen,
                answered=[client for client in chosen if client not in refused],
                refused=refused,
                train_loss=loss,
                uplink_bytes=ledger.up,
                downlink_bytes=ledger.down,
                seconds=round(time.perf_counter() - began, 3),
                examples=examples,
                ledger=ledger.to_json(),
            )
        )
