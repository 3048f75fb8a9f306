"""The device's app: hands every message to the resident worker and returns what it says.

Flower starts a new process with this module for every message, so nothing heavy is imported. A
client that returns anything but a message would wedge its node: every path ends in a message.
"""

import time
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hofl.engines.flower.records import content, parts
from hofl.engines.network.link import LinkLost, connect, receive, send

TRIES = 3
"""How often a worker may die over one message before it is the message's fault."""

app = ClientApp()


@app.train()
def plan(message: Message, context: Context) -> Message:
    """A plan down, an upload or a failure up."""
    return _forwarded("plan", message, context)


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """What this device is and can do."""
    return _forwarded("join", message, context)


def _forwarded(kind: str, message: Message, context: Context) -> Message:
    try:
        header, payload = parts(message)
        until = time.monotonic() + message.metadata.ttl
        socket_path = Path(str(context.node_config["socket"]))
        asked = {**header, "kind": kind, "message": message.metadata.message_id}
        reply, answer = _ask(socket_path, asked, payload, until)
        return Message(content(reply, answer), reply_to=message)
    except Exception as error:  # whatever it is, the server must hear of it
        reason = (str(error).strip().splitlines() or [""])[0]
        failure = {"failure": f"{type(error).__name__}: {reason}"}
        return Message(content(failure), reply_to=message)


def _ask(
    path: Path, header: dict[str, Any], payload: bytes, until: float
) -> tuple[dict[str, Any], bytes]:
    """The worker's answer; a worker that died is waited for, and asked again."""
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
