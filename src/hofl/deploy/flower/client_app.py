"""The device's app: hands every message to the resident worker and returns its answer.

Flower starts a new process with this module for every message, so nothing heavy is imported. A
client that returns anything but a message would wedge its node: every path ends in a message.
"""

import math
import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hofl.core.errors import reason_of
from hofl.deploy.flower.records import content, parts
from hofl.deploy.link import LinkLost, connect, receive, send

TRIES = 3
"""How often a worker may die over one message before the message is given up."""
AT_LEAST = 5.0
"""Seconds for a worker to refuse what came too late: its answer says what its clock shows."""

app = ClientApp()


@app.train()
def plan(message: Message, context: Context) -> Message:
    """Answer a plan with an upload or a failure."""
    return _forwarded("plan", message, context)


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Answer with what this device is and can do."""
    return _forwarded("join", message, context)


def _forwarded(kind: str, message: Message, context: Context) -> Message:
    try:
        header, payload = parts(message)
        until = time.monotonic() + _seconds_left(header, message.metadata.ttl)
        socket_path = Path(str(context.node_config["socket"]))
        request = {**header, "kind": kind, "message": message.metadata.message_id}
        reply, upload = _ask(socket_path, request, payload, until)
        return Message(content(reply, upload), reply_to=message)
    except Exception as error:  # whatever it is, the server must get an answer
        print(f"{type(error).__name__}: {reason_of(error)}", file=sys.stderr)  # into node.log
        # Only the kind: this process does not know whether the device is a private one.
        failure = {"failure": f"{type(error).__name__} in its node; see its node.log"}
        return Message(content(failure), reply_to=message)


def _seconds_left(header: dict[str, Any], lifetime: float) -> float:
    """Return how long an answer is of use: to the deadline, in this device's own time."""
    return max(AT_LEAST, min(lifetime, header.get("until", math.inf) - time.time()))


def _ask(
    path: Path, header: dict[str, Any], payload: bytes, until: float
) -> tuple[dict[str, Any], bytes]:
    """Return the worker's answer; wait for a worker that died, and ask again."""
    died = 0
    while time.monotonic() < until:
        try:
            link = connect(path)
        except LinkLost:
            time.sleep(0.5)  # being restarted
            continue
        with link:
            link.settimeout(max(1.0, until - time.monotonic()))
            try:
                send(link, header, payload)
                return receive(link)
            except LinkLost:
                died += 1
        if died == TRIES:
            return {"failure": f"the worker died {died} times over this message"}, b""
    return {"failure": "the worker did not answer in time"}, b""
