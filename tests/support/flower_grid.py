"""Flower's grid in one process: the real apps and messages, without any network."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from hofl.deploy.engine import NetworkEngine
from hofl.deploy.flower.client_app import app as client_app
from hofl.deploy.flower.server_app import perform
from hofl.deploy.flower.transport import FlowerHub
from hofl.deploy.keys import KeyRing
from hofl.deploy.link import Header
from hofl.deploy.roster import Registry
from hofl.experiment.build import Experiment
from hofl.experiment.runs import config_text

SERVER = 1
Tamper = Callable[[Message], list[Message]]

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
    SERVER  # as Flower's processes do
)


class LocalGrid(Grid):
    """Nodes are sockets of workers; a message is answered when it is pushed.

    Replies can be pulled as long as their messages may live (``ttl``), as with Flower's SuperLink.
    Flower's grid is abstract: what the server app never calls ends in an error here.
    """

    def __init__(self, sockets: dict[int, Path]) -> None:
        self.sockets = sockets
        self._replies: dict[str, tuple[float, Message]] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.sockets)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            node = message.metadata.dst_node_id
            context = Context(
                run_id=1,
                node_id=node,
                node_config={"socket": str(self.sockets[node])},
                state=RecordDict(),
                run_config={},
            )
            TaskIdentity.node_id = node
            reply = client_app(message, context)
            TaskIdentity.node_id = SERVER
            expires = time.monotonic() + message.metadata.ttl
            self._replies[message.metadata.message_id] = expires, reply
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = [self._replies.pop(name) for name in message_ids if name in self._replies]
        return [reply for expires, reply in replies if time.monotonic() < expires]


class Tampered(LocalGrid):
    """Changes what one node answers to a plan."""

    def __init__(self, sockets: Mapping[int, Path], node: int, tamper: Tamper) -> None:
        super().__init__(dict(sockets))
        self._node, self._tamper = node, tamper

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for reply in super().pull_messages(message_ids):
            hit = reply.metadata.src_node_id == self._node
            plan = reply.metadata.message_type == "train"
            replies += self._tamper(reply) if hit and plan else [reply]
        return replies


class LocalBridge:
    """The server app in this process, without a socket in between."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def wait(self, seconds: float) -> bool:
        return True

    def call(self, header: Header, payload: bytes = b"") -> tuple[Header, bytes]:
        return perform(self.grid, header, payload)


class NothingToRun:
    """Nothing has to be started."""

    def ensure(self, bridge: Any) -> None:
        pass

    def admit(self) -> None:
        pass

    def keep_running(self) -> bool:
        return True


def local_engine(
    experiment: Experiment,
    bridge: LocalBridge,
    folder: Path,
    keys: KeyRing | None = None,
    say: Callable[[str], None] = lambda text: None,
    idle: Callable[[], None] = lambda: None,
) -> NetworkEngine:
    """The network engine over a bridge of this process; ``folder`` keeps the client numbers."""
    limits = experiment.config.server
    return NetworkEngine(
        FlowerHub(NothingToRun(), bridge),  # type: ignore[arg-type]
        Registry(folder / "devices.json"),
        run_config=config_text(experiment.config),
        layout=experiment.layout,
        clients=experiment.config.fleet.clients,
        min_answers=limits.min_answers,
        deadline=limits.deadline,
        wait=limits.wait,
        keys=keys,
        notice=say,
        idle=idle,
        pause=0.0,
        method=experiment.method,
    )
