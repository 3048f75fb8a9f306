"""The network engine: the loop's plans and answers over a transport that may fail at any time."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from hofl.engines.network.bridge import Bridge
from hofl.engines.network.link import Header, LinkLost
from hofl.engines.network.registry import Registry
from hofl.engines.network.roster import Roster
from hofl.engines.rounds import Failure, Observer, RoundLost
from hofl.errors import HoflError, UploadRefused
from hofl.experiment.build import Experiment
from hofl.experiment.runs import config_text
from hofl.messages import RoundPlan, printable
from hofl.secure.signatures import KeyRing
from hofl.server.checks import check_sender

PATIENCE = 180.0
"""Seconds to wait for devices that were there before an outage; a node's lease is about 65 s."""
TELL_EVERY = 60.0
"""Seconds between two lines about devices that are waited for."""
GREET_EVERY = 5.0
"""Seconds between two looks for new devices while a round is running."""


class Services(Protocol):
    """Whatever must run for the bridge to be connected."""

    def ensure(self, bridge: Bridge) -> None:
        """Start what is not running, and wait until the bridge is connected."""
        ...

    def admit(self) -> None:
        """Let in devices whose keys are new."""
        ...

    def healthy(self) -> bool:
        """Whether it runs; repairs what can be repaired without losing a message."""
        ...

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes down and up since the last look, by device, where somebody counts them."""
        ...

    def close(self) -> None:
        """Stop everything."""
        ...


class NetworkEngine:
    """Devices behind a transport.

    Args:
        experiment: the server's side of the run.
        bridge: connection to the transport.
        services: keeps the transport running.
        registry: which device is which client.
        before: clients that were there before a resume, to be waited for.
        keys: of the devices that may take part; an answer counts only with its signature.
        observe: told of devices that come and of what goes wrong.
        pause: seconds between two looks for an answer.
    """

    def __init__(
        self,
        experiment: Experiment,
        bridge: Bridge,
        services: Services,
        registry: Registry,
        *,
        before: Iterable[int] = (),
        keys: KeyRing | None = None,
        observe: Observer = lambda event, facts: None,
        pause: float = 0.5,
    ) -> None:
        config, layout = experiment.config, experiment.layout
        self._bridge, self._services, self._registry = bridge, services, registry
        self._deadline, self._wait, self._pause = config.server.deadline, config.server.wait, pause
        self._layout, self._keys = layout, keys or KeyRing()
        self._say: Callable[[str], None] = lambda text: observe("device", {"text": text})
        self._roster = Roster(
            self._call,
            config_text(config).encode(),
            layout.digest,
            layout.num_blocks,
            self._say,
            self._keys,
        )
        self._expected = registry.names(before)
        self._minimum = config.server.min_answers if self._expected else config.fleet.clients
        self._floor = config.server.min_answers
        self._nodes: dict[int, int] = {}
        self._traffic: dict[str, dict[str, float]] = {}

    def join(self) -> dict[int, int]:
        """Wait for enough devices: at first all that are configured, later those that were there.

        Whoever was there before an outage is waited for, but not longer than ``PATIENCE``.
        """
        began, told = time.monotonic(), 0.0
        while True:
            try:
                self._connected()
                self._services.healthy()
                self._services.admit()
                found = self._roster.refresh()
            except LinkLost as loss:
                if time.monotonic() - began > self._wait:
                    raise HoflError(f"no connection within {self._wait:g} s: {loss}.") from None
                continue
            missing, waited = self._expected - set(found), time.monotonic() - began
            if len(found) >= self._minimum and (not missing or waited > PATIENCE):
                break
            if waited > self._wait:
                raise HoflError(
                    f"{len(found)} of {self._minimum} devices came within {self._wait:g} s: start "
                    "them, or mend why they cannot join, and go on with --resume."
                )
            if waited > told:
                told = waited + TELL_EVERY
                wanted = max(self._minimum, len(self._expected))
                self._say(f"waiting for devices: {len(found)} of {wanted} are there")
            time.sleep(self._pause)
        self._expected, self._minimum = set(), self._floor
        self._registry.enrol(found)
        numbered = {self._registry.number(name): node for name, node in found.items()}
        self._nodes = dict(sorted(numbered.items()))
        return {i: self._roster.device(node).boundary for i, node in self._nodes.items()}

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Send every plan, then take the answers in their order until the deadline."""
        until = time.monotonic() + self._deadline
        self._traffic = {}
        try:
            sent = [self._push(plan) for plan in plans]
            greeted = time.monotonic()
            for plan, message in sent:
                while (answer := self._pull(plan, message)) is None:
                    if time.monotonic() > until:
                        answer = Failure(f"no answer within {self._deadline:g} s")
                        break
                    if time.monotonic() > greeted + GREET_EVERY:
                        self._services.healthy()
                        self._roster.refresh()
                        greeted = time.monotonic()
                    time.sleep(self._pause)
                yield answer
        except LinkLost as loss:
            # Whoever was there is expected back: the same cohort can be drawn again.
            self._expected = self._registry.names(self._nodes)
            raise RoundLost(f"connection to the transport lost ({loss})") from None

    def traffic(self) -> dict[str, dict[str, float]]:
        """Bytes of messages and of what they carried, and seconds of computing, per client."""
        for name, (down, up) in self._services.traffic().items():
            if self._registry.knows(name):
                mine = self._traffic.setdefault(str(self._registry.number(name)), {})
                mine |= {"http_down": down, "http_up": up}
        return self._traffic

    def close(self) -> None:
        """End the transport's run and everything that was started for it."""
        self._bridge.close()
        self._services.close()

    def _call(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        return self._bridge.call(header, payload)

    def _connected(self) -> None:
        """Bring the transport back when it is gone; its nodes have to be asked anew."""
        if not self._bridge.wait(0):
            if self._nodes:
                self._expected = self._expected or self._registry.names(self._nodes)
            self._services.ensure(self._bridge)
            self._roster.forget()

    def _push(self, message: bytes) -> tuple[RoundPlan, str]:
        plan = RoundPlan.from_bytes(message)
        node = self._nodes[plan.client]
        ask = {"ask": "push", "kind": "plan", "node": node, "ttl": self._deadline}
        sent, _ = self._call(ask, message)
        self._traffic[str(plan.client)] = {"plan": len(message), "down": sent["bytes"]}
        return replace(plan, w=plan.w[:0].clone()), sent["message"]  # w is not needed again

    def _pull(self, plan: RoundPlan, message: str) -> bytes | Failure | None:
        """The answer to a message, if its device has given one and no other has."""
        if not message:
            return Failure("the device left before its plan was sent")
        most = plan.max_upload_bytes(self._layout)
        reply, upload = self._call({"ask": "pull", "message": message, "most": most}, b"")
        if reply["state"] == "waiting":
            return None
        self._traffic[str(plan.client)] |= {"upload": len(upload), "up": reply.get("bytes", 0)}
        if reply["state"] == "failed":
            return Failure(printable(reply["reason"]))
        node = reply["node"]
        said = reply["header"]
        sender = self._roster.name(node)
        try:
            check_sender(sender, plan, self._registry.devices())
        except UploadRefused as refusal:
            return Failure(printable(refusal))
        try:
            self._keys.check(sender, message, said, upload)
        except UploadRefused as refusal:
            # A worker that is dead cannot sign; whoever says so in its place may give the reason.
            return Failure(printable(said.get("failure", refusal)))
        self._roster.revise(node, said)
        self._traffic[str(plan.client)]["seconds"] = _seconds(said)
        if "failure" in said:
            return Failure(printable(said["failure"]))
        return upload


def _seconds(header: Header) -> float:
    """How long a device computed, as it says; -1 when it does not."""
    said = header.get("seconds")
    return float(said) if isinstance(said, int | float) and 0 <= said < 1e9 else -1.0
