"""Flower's grid in one process: the real apps and messages, without any network."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from hofl.engines.flower.client_app import app as client_app
from hofl.engines.flower.server_app import perform
from hofl.engines.network.engine import NetworkEngine
from hofl.engines.network.link import Header
from hofl.engines.network.registry import Registry
from hofl.experiment.build import Experiment
from hofl.secure.signatures import KeyRing

SERVER = 1
Tamper = Callable[[Message], list[Message]]

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
    SERVER  # as Flower's processes do
)


class LocalGrid(Grid):
    """Nodes are sockets of workers; a message is answered when it is pushed.

    Flower's grid is abstract: what the server app never calls ends in an error here.
    """

    def __init__(self, sockets: dict[int, Path]) -> None:
        self.sockets = sockets
        self._replies: dict[str, Message] = {}

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
            self._replies[message.metadata.message_id] = reply
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]


class Tampered(LocalGrid):
    """Changes what one node answers to a plan."""

    def __init__(self, sockets: Mapping[int, Path], node: int, tamper: Tamper) -> None:
        super().__init__(dict(sockets))
        self._node, self._tamper = node, tamper

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for reply in super().pull_messages(message_ids):
            hit = reply.metadata.src_node_id == self._node
            plan = reply.metadata.message_type == "train"
            found += self._tamper(reply) if hit and plan else [reply]
        return found


class LocalBridge:
    """What the loop sees of the server app, without a socket between them."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def wait(self, seconds: float) -> bool:
        return True

    def call(self, header: Header, payload: bytes = b"") -> tuple[Header, bytes]:
        return perform(self.grid, header, payload)

    def close(self) -> None:
        pass


class NoServices:
    """Nothing has to be started."""

    def ensure(self, bridge: Any) -> None:
        pass

    def admit(self) -> None:
        pass

    def traffic(self) -> dict[str, tuple[int, int]]:
        return {}

    def healthy(self) -> bool:
        return True

    def close(self) -> None:
        pass


def local_engine(
    experiment: Experiment,
    bridge: LocalBridge,
    folder: Path,
    keys: KeyRing | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> NetworkEngine:
    """The network engine over a bridge of this process; ``folder`` keeps who is who."""
    return NetworkEngine(
        experiment,
        bridge,  # type: ignore[arg-type]
        NoServices(),
        Registry(folder / "devices.json"),
        keys=keys,
        observe=lambda event, facts: say(facts["text"]),
        pause=0.0,
    )
