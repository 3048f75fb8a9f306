"""Flower as a transport: the server's end asks a Flower app, a device's end is Flower's node."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hofl.deploy.flower import commands
from hofl.deploy.flower.superlink import Bridge, SuperLink
from hofl.deploy.gateway import Gateway, GatewayProcess, nginx
from hofl.deploy.keys import Identity, ServerFiles
from hofl.deploy.link import Header, private_folder
from hofl.deploy.processes import free_port, split_address, undisturbed
from hofl.deploy.relay import Relay
from hofl.deploy.transport import Endpoint, Kind, Node, Notice, Reply, Sent, Undelivered

log = logging.getLogger("hofl.device")

LEASE = 65.0
"""Seconds for which the SuperLink refuses a restarted node with a key: its old lease runs on."""


class FlowerHub:
    """The server's end: asks Flower's app over the bridge, and restarts Flower when it is gone."""

    def __init__(self, superlink: SuperLink, bridge: Bridge) -> None:
        self._superlink, self._bridge = superlink, bridge

    def connect(self) -> bool:
        """Start Flower when its app is not connected; register new keys, unregister old ones."""
        fresh = not self._bridge.wait(0)
        if fresh:
            self._superlink.ensure(self._bridge)
        self._superlink.keep_running()
        self._superlink.admit()
        return fresh

    def keep_running(self) -> None:
        """Restart the gateway when it is gone."""
        self._superlink.keep_running()

    def nodes(self) -> dict[int, str]:
        """Return who is online; Flower knows a name only when a key was registered under it."""
        answer, _ = self._bridge.call({"ask": "nodes"})
        return {node["node"]: node["name"] for node in answer["nodes"]}

    def push(self, node: int, kind: Kind, header: Header, payload: bytes, seconds: float) -> Sent:
        """Send a message."""
        ask = {"ask": "push", "kind": kind, "node": node, "ttl": seconds, "header": header}
        answer, _ = self._bridge.call(ask, payload)
        return Sent(answer["message"], answer["bytes"])

    def pull(self, message: str, most: int) -> Reply | Undelivered | None:
        """Return the answer to a message, if there is one."""
        answer, payload = self._bridge.call({"ask": "pull", "message": message, "most": most})
        if answer["state"] == "waiting":
            return None
        size = answer.get("bytes", 0)
        if answer["state"] == "failed":
            return Undelivered(answer["reason"], size)
        return Reply(answer["node"], answer["header"], payload, size)


class FlowerTransport:
    """Both ends, over Flower's own processes."""

    def check_server(self, endpoint: Endpoint) -> None:
        """Refuse to start without Flower, and without nginx where devices come from outside."""
        commands.check_installed()
        if endpoint.tls is not None:
            nginx()

    def check_device(self) -> None:
        """Refuse to start without Flower."""
        commands.check_installed()

    @contextmanager
    def hub(self, folder: Path, endpoint: Endpoint, notice: Notice) -> Iterator[FlowerHub]:
        """Run Flower's SuperLink, behind a gateway where there are certificates."""
        link = _superlink(folder, endpoint, notice)
        with private_folder() as private:
            bridge = Bridge(private / "loop", link.keep_running)
            try:
                yield FlowerHub(link, bridge)
            finally:
                with undisturbed():
                    bridge.close()
                    link.close()

    @contextmanager
    def node(self, server: str, identity: Identity | None, home: Path) -> Iterator[Node]:
        """Return how Flower's node is started; with a certificate, a relay shows it."""
        environment = commands.environment(home / "flower")
        with ExitStack() as stack:
            if identity is not None:
                relay = stack.enter_context(Relay(server, identity))
                log.info("listening on %s, for the node alone (relay)", relay.address)
                server = relay.address

            def command(socket: Path) -> list[str]:
                port = free_port()
                log.info("listening on 127.0.0.1:%d, for its own processes (node)", port)
                return commands.supernode(server, port, socket, identity)

            yield Node(command, environment, LEASE)


FLOWER = FlowerTransport()


def _superlink(folder: Path, endpoint: Endpoint, notice: Notice) -> SuperLink:
    if endpoint.tls is None or endpoint.nodes is None:
        notice(f"listening on {endpoint.address}, for devices (Flower's SuperLink)")
        return SuperLink(folder, *split_address(endpoint.address), notice=notice)
    port = free_port()
    notice(f"listening on {endpoint.address}, for devices (nginx)")
    notice(f"listening on 127.0.0.1:{port}, for nginx alone (Flower's SuperLink)")
    gateway = Gateway(
        listen=endpoint.address,
        inner=port,
        tls=endpoint.tls,
        paths=commands.FLEET_PATHS,
        body=2 * commands.CHUNK,
    )
    return SuperLink(
        folder,
        "127.0.0.1",
        port,
        ServerFiles(endpoint.tls),
        endpoint.nodes,
        GatewayProcess(gateway, folder / "gateway"),
        notice,
    )
