"""A transport without a network: the server's hub calls the workers in its own process."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hofl.deploy.keys import Identity
from hofl.deploy.link import Header
from hofl.deploy.transport import Endpoint, Kind, Node, Notice, Reply, Sent, Undelivered
from hofl.deploy.worker import Worker

NAME = "support.in_process:IN_PROCESS"


class InProcessHub:
    """A message is answered when it is pushed."""

    def __init__(self, workers: Mapping[int, Worker]) -> None:
        self._workers, self._replies, self._count = workers, dict[str, Reply](), 0
        self._connected = False

    def connect(self) -> bool:
        fresh, self._connected = not self._connected, True
        return fresh

    def keep_running(self) -> None:
        pass

    def nodes(self) -> dict[int, str]:
        return dict.fromkeys(self._workers, "")

    def push(self, node: int, kind: Kind, header: Header, payload: bytes, seconds: float) -> Sent:
        self._count += 1
        message = str(self._count)
        request = {**header, "kind": kind, "message": message}
        reply, upload = self._workers[node].answer(request, payload)
        self._replies[message] = Reply(node, reply, upload, len(upload))
        return Sent(message, len(payload))

    def pull(self, message: str, most: int) -> Reply | Undelivered | None:
        return self._replies.pop(message)


class InProcess:
    """Both ends; a device's node is a process that does nothing.

    ``workers`` are those of the nodes, by number: tests put them there.
    """

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}

    def check_server(self, endpoint: Endpoint) -> None:
        pass

    def check_device(self) -> None:
        pass

    @contextmanager
    def hub(self, folder: Path, endpoint: Endpoint, notice: Notice) -> Iterator[InProcessHub]:
        yield InProcessHub(self.workers)

    @contextmanager
    def node(self, server: str, identity: Identity | None, home: Path) -> Iterator[Node]:
        sleep = "import time; time.sleep(600)"
        yield Node(lambda socket: [sys.executable, "-c", sleep, str(socket)], os.environ)


IN_PROCESS = InProcess()
