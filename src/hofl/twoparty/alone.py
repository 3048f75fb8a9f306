"""HERON-SFL: clients train bottom and auxiliary head alone; the server never answers with losses.

A step of the server is a round of h = E local steps. Each client of the cohort starts from the
common weights of bottom and head, moves both by zeroth-order steps on the head's loss, and sends z
and labels of every k-th batch, which its anchor pass has made anyway. The server takes one
first-order step of its only top per upload, client after client. At the end the clients' weights
are averaged; the top is not, there is one. Inference runs bottom and top, without the head.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.local.site import Site
from hofl.local.top import Gradients
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES, LocalRule
from hofl.twoparty.client import RemoteTop, SplitClient
from hofl.twoparty.exchange import Channel, Message, MessageRefused, on_the_wire
from hofl.twoparty.labels import labels_of
from hofl.twoparty.segment import Segment, learning_rate
from hofl.twoparty.server import SplitServer, Turn
from hofl.twoparty.setting import FIRST, Setting, Workflow


def local_steps(rule: LocalRule, upload_every: int = 5, server_lr: float | None = None) -> Workflow:
    """Return HERON-SFL's workflow.

    Args:
        rule: of the method; its surrogate judges without the server.
        upload_every: k, local steps per upload of an activation.
        server_lr: of the top; the optimizer's own where it is None.
    """
    if not SURROGATES[rule.surrogate.name].judges_alone:
        fitting = ", ".join(name for name, entry in SURROGATES.items() if entry.judges_alone)
        raise HoflError(
            f"a client that trains alone needs a surrogate that does not ask the top, not "
            f"{rule.surrogate.name!r}: set method.surrogate to {fitting}."
        )
    if type(upload_every) is not int or upload_every < 1:
        raise HoflError(f"upload_every must be a positive integer, got {upload_every!r:.40}.")
    return Workflow(
        client=partial(AloneClient, every=upload_every),
        server=partial(AloneServer, most=-(-rule.local_steps // upload_every)),
        shares_directions=False,
        server_lr=learning_rate(server_lr),
    )


@dataclass(frozen=True)
class SilentTop(RemoteTop):
    """A top that is trained from the batches it is sent, and says nothing back."""

    uploads: bool = True

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        """Send z and labels if this batch is one that is sent."""
        if self.uploads:
            tensors, fields = labels_of(self.batch)
            self.ask({"z": on_the_wire(z), **tensors}, {**fields, "train": True}).only()
        return Gradients(torch.zeros(()), torch.zeros(0), None)


@dataclass
class AloneClient(SplitClient):
    """A client that gets the common weights, and sends its own; it keeps nothing."""

    every: int = 1

    @property
    def state_bytes(self) -> int:
        """Nothing: the next turn brings its own."""
        return 0

    def train(self, turn: Message, channel: Channel) -> dict[str, Tensor]:
        """Run h steps from the common weights and return what came of them."""
        head, cut = self.model.layout.cut(0), self.model.layout.cut(self.setting.boundary)
        optimizer = self.setting.rule.optimizer
        turn.only("client", "auxiliary")
        given = turn.tensor("auxiliary", (head,)), turn.tensor("client", (cut - head,))
        self.bottom = Segment.start(torch.cat(given), optimizer)
        for e, batch in enumerate(self.batches(turn.step, self.number)):
            uploads = e % self.every == 0

            def open_top(site: Site, part: Batch, inputs: object, up: bool = uploads) -> SilentTop:
                return SilentTop(channel, turn.step, self.number, part, uploads=up)

            gradients = self.local_step(turn.step, FIRST + e, batch, open_top)
            assert gradients.bottom is not None
            self.bottom.step(gradients.bottom.cpu(), optimizer)
        return {"auxiliary": self.bottom.w[:head].clone(), "client": self.bottom.w[head:].clone()}


class AloneServer(SplitServer):
    """Keeps the common weights of auxiliary head and bottom.

    Args:
        model: at least the top half.
        setting: what both roles agreed on.
        most: uploads of a client in a round, one for every k of h local steps.
    """

    def __init__(self, model: SplitModel, setting: Setting, most: int) -> None:
        super().__init__(model, setting)
        self._most = most

    def start(self) -> Tensor:
        """Return the weights that everyone starts from."""
        return self.model.w[: self.model.layout.cut(self.setting.boundary)].cpu().clone()

    def offer(self, message: Message) -> dict[str, Tensor]:
        """Return the common weights."""
        head = self.model.layout.cut(0)
        return {"auxiliary": self.kept[:head], "client": self.kept[head:]}

    def take_gradient(self, turn: Turn, gradients: Gradients) -> dict[str, Tensor]:
        """Move the top at once, and say nothing."""
        if len(turn.losses) > self._most:
            raise MessageRefused(f"more than {self._most} batches in one round")
        if turn.before is None:
            turn.before = self.top.copy()
        self.top.step(gradients.flat.cpu(), self.setting.top_optimizer)
        self.load_top()
        return {}

    def take_result(self, message: Message, turn: Turn) -> dict[str, Tensor]:
        """Return the client's weights."""
        message.only("auxiliary", "client")
        head = self.model.layout.cut(0)
        sizes = {"auxiliary": head, "client": len(self.kept) - head}
        return {name: message.tensor(name, (size,)) for name, size in sizes.items()}

    def close(self, done: list[Turn]) -> None:
        """Average the clients' weights."""
        weights = [torch.cat([t.result["auxiliary"], t.result["client"]]) for t in done]
        self.kept = torch.stack(weights).double().mean(0).float()

    def bottom(self, start: Tensor) -> Tensor:
        """Return the common weights."""
        return self.kept

    def probe(self, message: Message, turn: Turn) -> Tensor:
        """Refuse: losses are not given away."""
        raise MessageRefused("an activation without labels, which this workflow does not have")
