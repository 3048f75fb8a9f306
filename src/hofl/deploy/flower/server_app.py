"""The server's app: carries out what the loop of rounds asks for over its socket.

The loop outlives this process: when Flower's SuperLink dies, a new run starts this app again and
the loop continues.
"""

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from hofl.deploy.flower.records import content, parts, wire_size
from hofl.deploy.link import LinkLost, connect, receive, send

LONGEST_REASON = 300
"""Characters of an error's text that are passed on."""

app = ServerApp()
Reply = tuple[dict[str, Any], bytes]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the loop until it closes the connection."""
    with connect(Path(str(context.run_config["socket"]))) as link:
        while True:
            try:
                header, payload = receive(link)
            except LinkLost:
                return
            send(link, *perform(grid, header, payload))


def perform(grid: Grid, header: dict[str, Any], payload: bytes) -> Reply:
    """Carry out one request of the loop: ``nodes``, ``push`` or ``pull``."""
    return {"nodes": _nodes, "push": _push, "pull": _pull}[header["ask"]](grid, header, payload)


def _nodes(grid: Grid, header: dict[str, Any], payload: bytes) -> Reply:
    """List who is online; a node has a name only when its key was registered under it."""
    online = [
        {"node": node.node_id, "name": node.name}
        for node in grid.get_nodes()
        if node.status in ("", "online")
    ]
    return {"nodes": online}, b""


def _push(grid: Grid, header: dict[str, Any], payload: bytes) -> Reply:
    kind = {"join": "query.join", "plan": "train"}[header["kind"]]
    message = Message(content(header["header"], payload), header["node"], kind, ttl=header["ttl"])
    size = wire_size(message)
    (message_id,) = grid.push_messages([message])
    return {"message": message_id or "", "bytes": size}, b""


def _pull(grid: Grid, header: dict[str, Any], payload: bytes) -> Reply:
    """Return the reply to one message, or that there is none yet."""
    try:
        return _reply(grid, header)
    except Exception as error:  # whatever a device sends costs its own answer, not the run
        grid.get_nodes()  # raises when it is the SuperLink that cannot be reached
        return {"state": "failed", "reason": f"unreadable: {type(error).__name__}"}, b""


def _reply(grid: Grid, header: dict[str, Any]) -> Reply:
    """Match replies by the message they answer: errors do not name their node."""
    for message in grid.pull_messages([header["message"]]):
        if message.metadata.reply_to_message_id != header["message"]:
            continue
        if message.has_error():
            reason = f"Flower error {message.error.code}: {message.error.reason or 'no reason'}"
            return {"state": "failed", "reason": reason[:LONGEST_REASON]}, b""
        size, node = wire_size(message), message.metadata.src_node_id
        try:
            answer, upload = parts(message, header["most"])
        except ValueError as error:
            return {"state": "failed", "reason": str(error), "bytes": size}, b""
        return {"state": "answered", "header": answer, "bytes": size, "node": node}, upload
    return {"state": "waiting"}, b""
