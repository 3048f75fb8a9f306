"""Who is there: nodes of the transport, asked once what they are, known by their names."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hofl.engines.network.link import Header
from hofl.messages import printable
from hofl.planning.sizes import AUTO
from hofl.secure.signatures import KeyRing

ASK_AGAIN = 30.0
"""Seconds after which a node that gave no usable answer is asked once more."""
JOIN_SECONDS = 1800.0
"""A device may have to download its model before it can answer."""

Call = Callable[[Header, bytes], tuple[Header, bytes]]
Notice = Callable[[str], None]


@dataclass(frozen=True)
class Device:
    """A device that joined.

    >>> print(Device("kitchen", 0, 17, "2GiB"))
    boundary 0 with 2GiB, 17 examples

    Args:
        name: registered with its key, or its own where there are no keys.
        boundary: the smallest order boundary that its memory allows.
        examples: how many training examples it holds.
        memory: its budget, in its own words.
    """

    name: str
    boundary: int
    examples: int
    memory: str = ""

    def __str__(self) -> str:
        budget = "" if self.memory in ("", AUTO) else f" with {printable(self.memory)}"
        # In a private run a device says that there are some, not how many.
        examples = "" if self.examples == 1 else f", {self.examples} examples"
        return f"boundary {self.boundary}{budget}{examples}"


class Roster:
    """Asks nodes that are new, and remembers what they said."""

    def __init__(
        self,
        call: Call,
        offer: bytes,
        layout: str,
        blocks: int,
        notice: Notice,
        keys: KeyRing,
    ) -> None:
        self._call, self._offer, self._layout, self._blocks = call, offer, layout, blocks
        self._notice, self._keys = notice, keys
        self.forget()

    def forget(self) -> None:
        """A new run of the transport: messages of the old one are void."""
        self._devices: dict[int, Device] = {}
        self._asked: dict[str, tuple[int, str]] = {}
        self._retry: dict[int, float] = {}

    def refresh(self) -> dict[str, int]:
        """Node of every device that is online and has joined, by name."""
        online = {one["node"]: one["name"] for one in self._call({"ask": "nodes"}, b"")[0]["nodes"]}
        self._collect()
        waiting = {node for node, _ in self._asked.values()}
        for node, registered in online.items():
            due = self._retry.get(node, 0.0) <= time.monotonic()
            if node not in self._devices and node not in waiting and due:
                self._ask(node, registered)
        # A restarted node without a key has a new id; the old one stays listed for a minute.
        found = {self._devices[node].name: node for node in self._devices if node in online}
        return {name: node for name, node in found.items() if self._keys.knows(name)}

    def device(self, node: int) -> Device:
        """What a node said it is."""
        return self._devices[node]

    def name(self, node: int) -> str:
        """Who a node is; nobody, if it has not joined."""
        known = self._devices.get(node)
        return "" if known is None else known.name

    def revise(self, node: int, header: Header) -> None:
        """Take in what a device says of itself beside an answer: its boundary may have changed."""
        known = self._devices.get(node)
        if known is not None and "boundary" in header:
            # A plan that it refused for its memory comes back with the boundary that it can run.
            said = {name: value for name, value in header.items() if name != "failure"}
            try:
                self._devices[node] = self._checked(said, known.name)
            except (ValueError, KeyError, TypeError):
                del self._devices[node]  # it is asked again

    def _ask(self, node: int, registered: str) -> None:
        header = {"ask": "push", "kind": "join", "node": node, "ttl": JOIN_SECONDS}
        sent, _ = self._call(header, self._offer)
        if sent["message"]:
            self._asked[sent["message"]] = (node, registered)

    def _collect(self) -> None:
        for message, (node, registered) in list(self._asked.items()):
            reply, _ = self._call({"ask": "pull", "message": message, "most": 0}, b"")
            if reply["state"] == "waiting":
                continue
            del self._asked[message]
            try:
                if reply["state"] == "failed":
                    raise ValueError(reply["reason"])
                if reply["node"] != node:
                    raise ValueError("another node answered")
                device = self._checked(reply["header"], registered)
                self._keys.check(device.name, message, reply["header"], b"")
            except (ValueError, KeyError, TypeError) as error:
                self._retry[node] = time.monotonic() + ASK_AGAIN
                who = registered or f"node {node}"
                self._notice(f"{who} cannot join: {printable(error)}")
                continue
            # The latest node of a name is the device; dictionaries keep the order of insertion.
            self._devices.pop(node, None)
            self._devices[node] = device
            self._notice(f"{device.name} is there: {device}")

    def _checked(self, said: dict[str, Any], registered: str) -> Device:
        if "failure" in said:
            raise ValueError(said["failure"])
        name, boundary, examples = said["name"], said["boundary"], said["examples"]
        if said["layout"] != self._layout:
            raise ValueError(f"it trains other parameters ({said['layout']!s:.40})")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
            raise ValueError(f"its name is {name!r:.80}")
        if registered and name != registered:
            raise ValueError(f"its key belongs to {registered!r}, it calls itself {name!r}")
        if type(boundary) is not int or not 0 <= boundary <= self._blocks:
            raise ValueError(f"its boundary is {boundary!r:.40}, not in 0 to {self._blocks}")
        if type(examples) is not int or examples < 1:
            raise ValueError("it holds no training examples")
        return Device(name, boundary, examples, str(said.get("memory", ""))[:40])
