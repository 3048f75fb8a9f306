"""Who is present: nodes of the transport, the devices behind them, and their client numbers.

A device's name is that of its registered key; without keys (on one machine) it is the one that the
device gives itself. Numbers key directions and minibatches, so they never change within a run.
"""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hofl.core.durable import intact, sealed, write_whole
from hofl.core.errors import HoflError, printable
from hofl.core.sizes import AUTO
from hofl.deploy.clock import ClockOffset
from hofl.deploy.keys import KeyRing
from hofl.deploy.link import Header
from hofl.deploy.transport import Hub, Notice, Undelivered
from hofl.engines.base import DeviceOffer
from hofl.methods import Method
from hofl.variants import OWN, Changes, changed

ASK_AGAIN = 30.0
"""Seconds after which a node that gave no usable answer is asked again."""
JOIN_SECONDS = 1800.0
"""A device may have to download its model before it can answer."""


class Registry:
    """Client numbers of a run's devices by name, kept in a file so that a resume knows them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._numbers = _numbers(path.read_text()) if path.exists() else {}
        except (OSError, ValueError):
            raise HoflError(
                f"{path} is damaged: it holds the devices' client numbers. Restore it, or start a "
                "new run with another --out."
            ) from None

    def enrol(self, names: Iterable[str]) -> None:
        """Give new names the next numbers; names that come together are numbered in order."""
        fresh = sorted(set(names) - set(self._numbers), key=_natural)
        if fresh:
            for name in fresh:
                self._numbers[name] = len(self._numbers)
            text = json.dumps({"devices": self._numbers}, indent=2)
            write_whole(self._path, sealed(text))

    def number(self, name: str) -> int:
        """Return the client number of a device."""
        return self._numbers[name]

    def devices(self) -> dict[int, str]:
        """Return the device behind each client number."""
        return {number: name for name, number in self._numbers.items()}

    def names(self, numbers: Iterable[int]) -> set[str]:
        """Return the devices behind these client numbers."""
        wanted = set(numbers)
        return {name for name, number in self._numbers.items() if number in wanted}


def _numbers(text: str) -> dict[str, int]:
    """Parse a registry's file; raise ValueError unless it numbers devices from 0 on."""
    fields = json.loads(text)
    if not isinstance(fields, dict) or not intact(text):
        raise ValueError("not as it was written")
    by_name: dict[str, int] = fields
    if isinstance(fields.get("devices"), dict):  # earlier versions wrote the numbers alone
        by_name = fields["devices"]
    numbers = list(by_name.values())
    if any(type(number) is not int for number in numbers) or sorted(numbers) != [
        *range(len(numbers))
    ]:
        raise ValueError("not the numbers from 0 on")
    return by_name


def _natural(name: str) -> list[tuple[str, int]]:
    """Sort device-2 before device-10."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", name)]


MOST_EXAMPLES = 10**9
"""The number is the device's own word: one that no device can hold is refused."""


@dataclass(frozen=True)
class Member:
    """A device that joined.

    >>> print(Member("kitchen", 0, 17, "2GiB"))
    boundary 0 with 2GiB, 17 examples

    Args:
        name: registered with its key, or its own where there are no keys.
        boundary: the smallest order boundary that its memory allows.
        examples: number of its training examples.
        memory: its budget, in its own words.
        rule: what its own rule changes in the run's.
        clock: of the device, measured by its latest answer.
    """

    name: str
    boundary: int
    examples: int
    memory: str = ""
    rule: Changes = field(default_factory=dict)
    clock: ClockOffset = field(default_factory=ClockOffset)

    def __str__(self) -> str:
        budget = "" if self.memory in ("", AUTO) else f" with {printable(self.memory)}"
        # In a private run a device says that there are some, not how many.
        examples = "" if self.examples == 1 else f", {self.examples} examples"
        rule = "".join(f", {name} {printable(value)}" for name, value in self.rule.items())
        return f"boundary {self.boundary}{budget}{examples}{rule}"


class Roster:
    """Asks new nodes to join, and remembers what they answered.

    Args:
        hub: the server's end of the transport.
        run_config: the run's configuration, sent to every new node.
        layout: digest of the shared coordinates; a device must have the same.
        blocks: of the model; no boundary is larger.
        notice: called when a device joins or cannot.
        keys: of the devices that may join.
        method: of the run; says whether devices may have rules of their own. None: they may not.
    """

    def __init__(
        self,
        hub: Hub,
        run_config: bytes,
        layout: str,
        blocks: int,
        notice: Notice,
        keys: KeyRing,
        method: Method | None = None,
    ) -> None:
        self._hub, self._run_config, self._layout, self._blocks = hub, run_config, layout, blocks
        self._notice, self._keys, self._method = notice, keys, method
        self.forget()

    def forget(self) -> None:
        """Start over after a restart of the transport: its earlier nodes and messages are void."""
        self._members: dict[int, Member] = {}
        self._asked: dict[str, tuple[int, str, float]] = {}
        self._retry: dict[int, float] = {}

    def refresh(self) -> dict[str, int]:
        """Return the node of every device that is online and has joined, by name."""
        online = self._hub.nodes()
        self._collect()
        waiting = {node for node, _, _ in self._asked.values()}
        for node, registered in online.items():
            due = self._retry.get(node, 0.0) <= time.monotonic()
            if node not in self._members and node not in waiting and due:
                self._ask(node, registered)
        # A restarted node without a key has a new id; the old one stays listed for a minute.
        nodes = {self._members[node].name: node for node in self._members if node in online}
        return {name: node for name, node in nodes.items() if self._keys.knows(name)}

    def offer(self, node: int) -> DeviceOffer:
        """Return what a node declared last."""
        member = self._members[node]
        return DeviceOffer(member.boundary, member.examples, member.rule)

    def name(self, node: int) -> str:
        """Return the name of a node's device; empty if it has not joined."""
        member = self._members.get(node)
        return "" if member is None else member.name

    def clock(self, node: int) -> ClockOffset:
        """Return how far the clock of a node's device is off."""
        return self._members[node].clock

    def revise(self, node: int, header: Header, sent: float) -> None:
        """Take in what a device declares beside an answer: boundary and clock may have changed.

        Args:
            node: who answered.
            header: of the answer.
            sent: when the message that it answers was sent, by ``time.time``.
        """
        member = self._members.get(node)
        if member is not None and "received" in header:
            try:
                clock = ClockOffset.declared(sent, header, time.time())
                member = self._members[node] = replace(member, clock=clock)
            except ValueError:
                del self._members[node]  # it is asked again
                return
        if member is not None and "boundary" in header:
            # A plan that it refused for its memory comes back with the boundary that it can run.
            declared = {name: value for name, value in header.items() if name != "failure"}
            try:
                revised = self._checked(declared, member.name)
                self._members[node] = replace(revised, clock=member.clock)
            except (ValueError, KeyError, TypeError):
                del self._members[node]  # it is asked again

    def _ask(self, node: int, registered: str) -> None:
        now = time.time()
        sent = self._hub.push(node, "join", {}, self._run_config, JOIN_SECONDS)
        if sent.message:
            self._asked[sent.message] = (node, registered, now)

    def _collect(self) -> None:
        for message, (node, registered, sent) in list(self._asked.items()):
            reply = self._hub.pull(message, 0)
            if reply is None:
                continue
            del self._asked[message]
            try:
                if isinstance(reply, Undelivered):
                    raise ValueError(reply.reason)
                if reply.node != node:
                    raise ValueError("another node answered")
                member = self._checked(reply.header, registered)
                self._keys.check(member.name, message, reply.header, b"")
                clock = ClockOffset.declared(sent, reply.header, time.time())
            except (ValueError, KeyError, TypeError) as error:
                self._retry[node] = time.monotonic() + ASK_AGAIN
                who = registered or f"node {node}"
                self._notice(f"{who} cannot join: {printable(error)}")
                continue
            # The latest node of a name is the device; dictionaries keep the order of insertion.
            self._members.pop(node, None)
            self._members[node] = replace(member, clock=clock)
            self._notice(f"{member.name} joined: {member}")
            if clock.wrong:
                self._notice(f"{member.name}: its clock is {clock} the server's; set it there.")

    def _checked(self, declared: Header, registered: str) -> Member:
        if "failure" in declared:
            raise ValueError(declared["failure"])
        name, boundary, examples = declared["name"], declared["boundary"], declared["examples"]
        if declared["layout"] != self._layout:
            raise ValueError(f"it trains other parameters ({declared['layout']!s:.40})")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
            raise ValueError(f"its name is {name!r:.80}")
        if registered and name != registered:
            raise ValueError(f"its key belongs to {registered!r}, it calls itself {name!r}")
        if type(boundary) is not int or not 0 <= boundary <= self._blocks:
            raise ValueError(f"its boundary is {boundary!r:.40}, not in 0 to {self._blocks}")
        if type(examples) is not int or not 1 <= examples <= MOST_EXAMPLES:
            raise ValueError(f"it declares {examples!r:.40} training examples, not 1 or more")
        rule = {key: declared[key] for key in OWN if key in declared}
        if rule:
            self._check_rule(rule)
        return Member(name, boundary, examples, str(declared.get("memory", ""))[:40], rule)

    def _check_rule(self, rule: Changes) -> None:
        """Refuse a rule that this run's devices may not choose, or that nobody can run."""
        if self._method is None or not self._method.own_bottoms:
            raise ValueError(f"it wants a rule of its own ({dict(rule)!r:.80}); this run has one")
        changed(self._method.local, rule)
