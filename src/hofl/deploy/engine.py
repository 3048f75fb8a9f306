"""The network engine: the loop's plans and answers over a transport that may fail at any time."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hofl.core.errors import HoflError, UploadRefused, printable
from hofl.core.layout import Layout
from hofl.deploy.keys import KeyRing
from hofl.deploy.link import Header, LinkLost
from hofl.deploy.roster import Registry, Roster
from hofl.deploy.transport import Hub, Notice, Reply, Undelivered
from hofl.engines.base import DeviceOffer, Dispatch, Failure, RoundLost
from hofl.messages import RoundPlan
from hofl.methods import Method
from hofl.server.checks import check_sender

PATIENCE = 180.0
"""Seconds to wait for devices that were present before an outage; Flower's leases take 65 s."""
NOTICE_EVERY = 60.0
"""Seconds between two lines about devices that are waited for."""
KEPT = 600.0
"""Seconds after the deadline for which answers that came in time can still be fetched."""
HELD = 2**28
"""Bytes of answers that may wait here for one before them; the transport keeps the others."""
GREET_EVERY = 5.0
"""Seconds between two looks for new devices while a round is running."""


@dataclass
class SentPlan:
    """A plan that was sent.

    Args:
        plan: the plan.
        message: the transport's name for it.
        sent: by ``time.time``.
        until: by ``time.monotonic``, when its device has had its time.
        answer: what came back, as soon as that is known.
        silent: whether nothing came back in time.
    """

    plan: RoundPlan
    message: str
    sent: float
    until: float
    answer: bytes | Failure | None = None
    silent: bool = False


class NetworkEngine:
    """Devices behind a transport.

    Args:
        hub: the server's end of the transport.
        registry: which device is which client.
        run_config: the run's configuration as TOML, sent to devices that join.
        layout: the shared coordinates.
        clients: devices that must be present before the first round.
        min_answers: devices that must be present before a later one.
        deadline: seconds that a device has for its answer.
        wait: seconds to wait for devices.
        before: clients that were present before a resume, to be waited for.
        keys: of the devices that may take part; an answer counts only with its signature.
        notice: called when a device comes, and with what goes wrong.
        idle: called again and again while it waits; may raise to stop the run.
        pause: seconds between two looks for an answer.
        method: of the run; says whether devices may have rules of their own.
    """

    def __init__(
        self,
        hub: Hub,
        registry: Registry,
        *,
        run_config: str,
        layout: Layout,
        clients: int,
        min_answers: int,
        deadline: float,
        wait: float,
        before: Iterable[int] = (),
        keys: KeyRing | None = None,
        notice: Notice = lambda text: None,
        idle: Callable[[], None] = lambda: None,
        pause: float = 0.5,
        method: Method | None = None,
    ) -> None:
        self._hub, self._registry, self._layout = hub, registry, layout
        self._deadline, self._wait, self._pause = deadline, wait, pause
        self._keys, self._notice, self._idle = keys or KeyRing(), notice, idle
        self._roster = Roster(
            hub, run_config.encode(), layout.digest, layout.num_blocks, notice, self._keys, method
        )
        self._expected = registry.names(before)
        self._minimum = min_answers if self._expected else clients
        self._floor = min_answers
        self._nodes: dict[int, int] = {}
        self._traffic: dict[int, dict[str, float]] = {}

    def join(self) -> dict[int, DeviceOffer]:
        """Wait for enough devices; return what each one offers, by client.

        Enough are at first all that are configured, later ``min_answers``. Devices that were
        present before an outage are waited for, but not longer than ``PATIENCE``.
        """
        began, next_notice = time.monotonic(), 0.0
        while True:
            try:
                self._connect()
                nodes = self._roster.refresh()
            except LinkLost as loss:
                self._idle()
                if time.monotonic() - began > self._wait:
                    raise HoflError(f"no connection within {self._wait:g} s: {loss}.") from None
                continue
            missing, waited = self._expected - set(nodes), time.monotonic() - began
            if len(nodes) >= self._minimum and (not missing or waited > PATIENCE):
                break
            if waited > self._wait:
                raise HoflError(
                    f"{len(nodes)} of {self._minimum} devices joined within {self._wait:g} s: "
                    "start them, or fix why they cannot join, then rerun with --resume."
                )
            if waited > next_notice:
                next_notice = waited + NOTICE_EVERY
                wanted = max(self._minimum, len(self._expected))
                self._notice(f"waiting for devices: {len(nodes)} of {wanted} are present")
            self._idle()
            time.sleep(self._pause)
        self._expected, self._minimum = set(), self._floor
        self._registry.enrol(nodes)
        numbered = {self._registry.number(name): node for name, node in nodes.items()}
        self._nodes = dict(sorted(numbered.items()))
        return {client: self._roster.offer(node) for client, node in self._nodes.items()}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Send every plan, then yield the answers in their order; each has the same time."""
        self._traffic = {}
        try:
            # All plans share w_t; their bytes are not held.
            asked = [self._push(dispatch) for dispatch in dispatches]
            waiting, greeted = deque(asked), time.monotonic()
            while waiting:
                self._look(waiting)
                if (answer := waiting[0].answer) is not None:
                    waiting.popleft().answer = None
                    yield answer
                    continue
                if time.monotonic() > greeted + GREET_EVERY:
                    self._hub.keep_running()
                    self._roster.refresh()
                    greeted = time.monotonic()
                self._idle()
                time.sleep(self._pause)
        except LinkLost as loss:
            # The devices are expected back: the same cohort can be drawn again.
            self._expected = self._registry.names(self._nodes)
            raise RoundLost(f"connection to the transport lost ({loss})") from None
        self._report_silence(asked)

    def traffic(self) -> dict[int, dict[str, float]]:
        """Return bytes of messages and of what they carry, and seconds of computing, per client."""
        return self._traffic

    def _connect(self) -> None:
        """Bring the transport back when it is gone; its nodes are then asked again."""
        present = self._registry.names(self._nodes)
        if self._hub.connect():
            self._expected = self._expected or present
            self._roster.forget()

    def _push(self, dispatch: Dispatch) -> SentPlan:
        plan, node = dispatch.plan, self._nodes[dispatch.plan.client]
        # The deadline in the device's own time: it does not compute what comes too late.
        now = time.time()
        header = {"until": self._roster.clock(node).there(now + self._deadline)}
        sent = self._hub.push(node, "plan", header, dispatch.message, self._deadline + KEPT)
        self._traffic[plan.client] = {"plan": len(dispatch.message), "down": sent.size}
        return SentPlan(plan, sent.message, now, time.monotonic() + self._deadline)

    def _look(self, waiting: Iterable[SentPlan]) -> None:
        """Take in every answer that has come; whoever has had its time gets no more."""
        held = 0
        for question in waiting:
            if question.answer is None:
                overdue = time.monotonic() > question.until
                question.answer = self._pull(question)
                if question.answer is None and overdue:
                    question.silent = True
                    question.answer = Failure(f"no answer within {self._deadline:g} s")
            held += len(question.answer) if isinstance(question.answer, bytes) else 0
            if held > HELD:
                break

    def _report_silence(self, asked: Sequence[SentPlan]) -> None:
        names = sorted(self._registry.names(q.plan.client for q in asked if q.silent))
        if names:
            answered = f"{len(asked) - len(names)} of {len(asked)} answered"
            self._notice(f"{answered}; {', '.join(names)} gave none within {self._deadline:g} s")

    def _pull(self, question: SentPlan) -> bytes | Failure | None:
        """Return the answer to a plan, if its own device has given one."""
        plan, message = question.plan, question.message
        if not message:
            return Failure("the device left before its plan was sent")
        reply = self._hub.pull(message, plan.max_upload_bytes(self._layout))
        if reply is None:
            return None
        traffic = self._traffic[plan.client]
        if isinstance(reply, Undelivered):
            traffic |= {"upload": 0, "up": reply.size}
            return Failure(printable(reply.reason))
        traffic |= {"upload": len(reply.payload), "up": reply.size}
        return self._checked(question, reply)

    def _checked(self, question: SentPlan, reply: Reply) -> bytes | Failure:
        """Check the sender before the contents."""
        plan, message = question.plan, question.message
        sender, header = self._roster.name(reply.node), reply.header
        try:
            check_sender(sender, plan, self._registry.devices())
        except UploadRefused as refusal:
            return Failure(printable(refusal))
        try:
            self._keys.check(sender, message, header, reply.payload)
        except UploadRefused as refusal:
            # A dead worker cannot sign; whoever reports its failure may still give the reason.
            return Failure(printable(header.get("failure", refusal)))
        self._roster.revise(reply.node, header, question.sent)
        self._traffic[plan.client]["seconds"] = _seconds(header)
        if "failure" in header:
            return Failure(printable(header["failure"]))
        return reply.payload


def _seconds(header: Header) -> float:
    """Return how long a device computed, as it reports; -1 when it does not."""
    reported = header.get("seconds")
    return float(reported) if isinstance(reported, int | float) and 0 <= reported < 1e9 else -1.0
