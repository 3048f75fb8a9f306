"""Devices that answer every plan with another malformed message, and at last honestly."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hofl.core.layout import Layout
from hofl.deploy.flower import commands
from hofl.deploy.processes import Child, free_port
from hofl.deploy.worker import Worker
from hofl.messages import RoundPlan, Upload
from support.flower_workers import serving
from support.hostile_app import FORGERIES, MALFORMED, installed
from support.malformed_kinds import KINDS, NOT_OURS, Scene

Frame = tuple[Any, bytes]
Lie = Callable[[Any, Scene], Frame]
"""The honest header and the scene -> the frame that the worker gives to its app."""


def _upload(tamper: Callable[[Scene], bytes]) -> Lie:
    return lambda honest, scene: (honest, tamper(scene))


def _forgery(name: str) -> Lie:
    return lambda honest, scene: ({**honest, "forge": name}, scene.data)


def _header(**changes: Any) -> Lie:
    return lambda honest, scene: ({**honest, **changes}, scene.data)


def _failure(text: Any) -> Lie:
    return lambda honest, scene: ({"failure": text}, scene.data)


def _refused_anyway(**changes: Any) -> Lie:
    """The contents of a header must not save an upload, and not end anything."""
    return lambda honest, scene: ({**honest, **changes}, scene.data[:-4])


LIES: dict[str, tuple[Lie, str]] = {
    **{kind: (_upload(tamper), reason) for kind, (tamper, reason) in KINDS.items()},
    # Refused at Flower's boundary, before it is passed on.
    "a thousand times as long": (
        _upload(KINDS["a thousand times as long"][0]),
        r"malformed message: \d+ bytes, and at most \d+ are allowed",
    ),
    **{kind: (_forgery(kind), reason) for kind, (_, reason) in FORGERIES.items()},
    "a list for the header": (lambda honest, scene: ([honest], scene.data), "is not an object"),
    "null for the header": (lambda honest, scene: (None, scene.data), "is not an object"),
    "text for the header": (lambda honest, scene: ("boundary", scene.data), "is not an object"),
    "an object in the header": (_header(more={"deep": 1}), f"{MALFORMED}the header is nested"),
    "a list in the header": (_header(examples=[1]), f"{MALFORMED}the header is nested"),
    "a long word in the header": (_header(memory="1" * 2**16), f"{MALFORMED}the header is too"),
    "a failure beside an upload": (_failure("no power"), "^no power$"),
    "a failure in control characters": (
        _failure("\x1b[2J\x1b]0;mine\x07\r\n\u202e\ud800"),
        r"^\\x1b\[2J\\x1b\]0;mine\\x07\\r\\n\\u202e\\ud800$",
    ),
    "a failure as long as a book": (_failure("no power " * 5000), r"^.{200}$"),
    "a failure without words": (_failure(""), "^UploadRefused$"),
    "a failure that is none": (_failure(None), "^None$"),
    "a boundary beyond the model in the header": (_refused_anyway(boundary=99), NOT_OURS),
    "a negative boundary in the header": (_refused_anyway(boundary=-1), NOT_OURS),
    "another device's name in the header": (_refused_anyway(name="device-0"), NOT_OURS),
    "other parameters in the header": (_refused_anyway(layout="0" * 16), NOT_OURS),
    "keys that nobody knows": (_refused_anyway(admin=True, client=0, state="answered"), NOT_OURS),
    "seconds that are not a number": (_refused_anyway(seconds=float("nan")), NOT_OURS),
    "seconds without end": (_refused_anyway(seconds=10**400), NOT_OURS),
}
"""Every kind of :data:`KINDS`, and those that exist only on the wire."""
DOUBTS = 4
"""Of these, after which a device has to declare again what it is."""


class Liar:
    """A worker that computes honestly, and tells one lie after the other before the truth.

    Args:
        worker: an honest one.
        lies: in their order.
        layout: of the run.
        other: what an honest client answered to its own plan, in whatever run.
    """

    def __init__(self, worker: Worker, lies: Sequence[str], layout: Layout, other: Upload) -> None:
        self._worker, self._layout, self._other = worker, layout, other
        self._left = list(lies)
        self.joined = 0

    def answer(self, header: Any, payload: bytes) -> Frame:
        """To the node's app, over the socket."""
        reply, data = self._worker.answer(header, payload)
        if header["kind"] == "join":
            self.joined += 1
        elif self._left:
            lie, _ = LIES[self._left.pop(0)]
            return lie(reply, self._scene(RoundPlan.from_bytes(payload), data))
        return reply, data

    def _scene(self, plan: RoundPlan, data: bytes) -> Scene:
        def answer(asked: RoundPlan) -> bytes:
            return self._worker.answer({"kind": "plan"}, asked.to_bytes())[1]

        other = replace(self._other, run=plan.run).to_bytes()
        return Scene(plan=plan, data=data, other=other, layout=self._layout, answer=answer)


@contextmanager
def taking_part(worker: Liar, name: str, port: int, folder: Path) -> Iterator[None]:
    """Flower's real node for a worker of this process; ended on the way out."""
    environment = installed(folder / f"app-{name}", commands.environment(folder / f"home-{name}"))
    # Unix sockets have short names: a private folder in the system's temporary one.
    with tempfile.TemporaryDirectory(prefix="hofl-") as private:
        socket = Path(private) / "worker"
        words = commands.supernode(f"127.0.0.1:{port}", free_port(), socket)
        node = Child(name, lambda: words, folder / f"{name}.log", environment)
        with serving(socket, worker):
            node.start()
            try:
                yield
            finally:
                node.stop()
