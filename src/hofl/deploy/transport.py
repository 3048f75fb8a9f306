"""How messages travel between a server and its devices: all that a transport has to provide.

A transport is one object with the methods of :class:`Transport`, in a module of its own; nothing
else knows which one is in use. It is chosen by its name in :data:`TRANSPORTS`, or from any
installed package as ``module:object``, and loaded when it is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from hofl.core.errors import HoflError
from hofl.deploy.keys import Identity, ServerFiles, public_keys
from hofl.deploy.link import Header
from hofl.deploy.processes import is_loopback, split_address

TRANSPORTS = {"flower": "hofl.deploy.flower.transport:FLOWER"}
DEFAULT = "flower"

Kind = Literal["join", "plan"]
"""Of a message: the run's configuration, answered with what the device is; or a plan."""
Notice = Callable[[str], None]
"""Shows a line to whoever watches the server."""


@dataclass(frozen=True)
class Sent:
    """A message on its way.

    Args:
        message: the transport's name for it, which no other message has; empty if the node is gone.
        size: bytes sent, with all that the transport adds.
    """

    message: str
    size: int


@dataclass(frozen=True)
class Reply:
    """An answer, as it was delivered: anyone may have sent anything.

    Args:
        node: who delivered it.
        header: what the device says of itself, or why it failed; a flat object.
        payload: the upload, if there is one.
        size: bytes received, with all that the transport adds.
    """

    node: int
    header: Header
    payload: bytes
    size: int


@dataclass(frozen=True)
class Undelivered:
    """The transport's word that a message has no usable answer, and why."""

    reason: str
    size: int = 0


class Hub(Protocol):
    """The server's end of a transport. Every call may raise :class:`~hofl.deploy.link.LinkLost`."""

    def connect(self) -> bool:
        """Start what is not running and admit new keys; return whether nodes must be asked again.

        Called before every round. After a new start, earlier messages and nodes are void.
        """
        ...

    def keep_running(self) -> None:
        """Repair what can be repaired without losing a message; called while a round waits."""
        ...

    def nodes(self) -> dict[int, str]:
        """Return the nodes that are online, with the name of each one's key, empty without keys."""
        ...

    def push(self, node: int, kind: Kind, header: Header, payload: bytes, seconds: float) -> Sent:
        """Send a message that is void, with its answer, after so many seconds."""
        ...

    def pull(self, message: str, most: int) -> Reply | Undelivered | None:
        """Return the answer to a message once, or None while there is none.

        Answers with a payload of more than ``most`` bytes are undelivered.
        """
        ...


@dataclass(frozen=True)
class Node:
    """How a device's node is started.

    The node hands every message to the worker's socket as one frame (``hofl.deploy.link``), with
    ``kind`` and ``message`` beside what the server put into its header, and sends the worker's
    frame back as the answer.

    Args:
        command: socket of the worker -> the words of the node's command.
        environment: of its process.
        longest_pause: most seconds between two restarts.
    """

    command: Callable[[Path], Sequence[str]]
    environment: Mapping[str, str]
    longest_pause: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens, and whom it lets in.

    Args:
        address: HOST:PORT.
        tls: folder of certificates; needed outside loopback.
        nodes: folder of the devices' public keys; needed with TLS.
        transport: how messages travel.
    """

    address: str
    tls: Path | None = None
    nodes: Path | None = None
    transport: str = DEFAULT

    def check(self) -> None:
        """Refuse what could never work, and an open door, before anything is written.

        Without TLS and keys, only this machine may reach the server.
        """
        host, _ = split_address(self.address)
        if self.tls is None and not is_loopback(host):
            raise HoflError(
                f"{host} can be reached from outside, and whoever reaches it could read and change "
                "the training: give --tls DIR and --nodes DIR (hofl certs makes both), or use "
                "127.0.0.1."
            )
        if (self.tls is None) != (self.nodes is None):
            raise HoflError("--tls DIR and --nodes DIR belong together: devices prove their keys.")
        if self.tls is not None and self.nodes is not None:
            ServerFiles(self.tls).check()
            public_keys(self.nodes)
        find_transport(self.transport).check_server(self)


class Transport(Protocol):
    """Both ends of a transport."""

    def check_server(self, endpoint: Endpoint) -> None:
        """Refuse to start a server where something that the transport needs is not installed."""
        ...

    def check_device(self) -> None:
        """Refuse to start a device where something that the transport needs is not installed."""
        ...

    def hub(self, folder: Path, endpoint: Endpoint, notice: Notice) -> AbstractContextManager[Hub]:
        """Open the server's end; leaving the context stops everything that was started.

        Args:
            folder: for files and logs.
            endpoint: where to listen, and whom to let in.
            notice: called with what goes wrong and is retried.
        """
        ...

    def node(
        self, server: str, identity: Identity | None, home: Path
    ) -> AbstractContextManager[Node]:
        """Return a device's end, usable inside the context.

        Args:
            server: HOST:PORT.
            identity: the device's key and certificate; None on the server's own machine.
            home: folder for files.
        """
        ...


def find_transport(name: str) -> Transport:
    """Load a transport by its name in :data:`TRANSPORTS`, or by ``module:object``."""
    module, separator, attribute = TRANSPORTS.get(name, name).partition(":")
    if not separator:
        known = ", ".join(TRANSPORTS)
        raise HoflError(f"unknown transport {name!r}: choose one of {known}, or MODULE:OBJECT.")
    try:
        transport: Transport = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise HoflError(f"cannot load transport {name!r}: {error}.") from None
    return transport
