"""The client of a split workflow: it holds the bottom and asks the server for the rest.

A step is HO-FL's own local step (``hofl.local.step``) with a top that lies behind a channel. The
client leads: it says what it holds, gets its turn, asks with activations, and sends its result.
What it trains from, and what it sends, are the workflow's (``shared``, ``alone``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.local.bottom import ZerothOrder
from hofl.local.site import Site
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.local.surrogates import Surrogate
from hofl.local.top import Gradients, OpenTop
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES
from hofl.twoparty.exchange import Channel, Message, on_the_wire
from hofl.twoparty.labels import labels_of
from hofl.twoparty.segment import Segment
from hofl.twoparty.setting import Setting
from hofl.twoparty.store import ClientStore

Batches = Callable[[int, int], list[Batch]]
"""(step, client) -> the batches of its local steps."""


@dataclass(frozen=True)
class RemoteTop:
    """The top behind a channel. Labels travel once, with the first activation of a batch."""

    channel: Channel
    step: int
    client: int
    batch: Batch

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        """Send z and labels; the server keeps its own gradient and returns loss and delta."""
        tensors, fields = labels_of(self.batch)
        answer = self.ask({"z": on_the_wire(z), **tensors}, {**fields, "train": True})
        answer.only("loss", "delta")
        delta = answer.tensor("delta", tuple(z.shape)).to(z) if to_boundary else None
        return Gradients(answer.tensor("loss", (1,))[0], torch.zeros(0), delta)

    def loss(self, z: Tensor) -> Tensor:
        """Send a perturbed z and return the loss there."""
        answer = self.ask({"z": on_the_wire(z)}, {"train": False})
        answer.only("loss")
        return answer.tensor("loss", (1,))[0]

    def ask(self, tensors: dict[str, Tensor], fields: dict[str, object]) -> Message:
        """Send an activation and return the server's feedback."""
        message = Message("activation", self.step, self.client, tensors, fields)
        data = self.channel.request(message.to_bytes())
        return Message.from_bytes(data, "feedback", self.step, self.client)


@dataclass
class SplitClient(ABC):
    """One client.

    Args:
        model: at least the bottom half; clients of one process share it.
        setting: what both roles agreed on.
        number: i.
        batches: its data.
        store: where its state survives a kill.
    """

    model: SplitModel
    setting: Setting
    number: int
    batches: Batches
    store: ClientStore
    bottom: Segment = field(init=False)

    def __post_init__(self) -> None:
        cut, rule = self.model.layout.cut(self.setting.boundary), self.setting.rule
        self.bottom = Segment.start(self.model.w[:cut].cpu(), rule.optimizer)
        self._surrogate: Surrogate = rule.surrogate.made_by(SURROGATES[rule.surrogate.name].make)

    @property
    def held(self) -> int:
        """Steps that the client's bottom has taken; 0 where every step brings a new one."""
        return 0

    @property
    def state_bytes(self) -> int:
        """What the client holds between its turns, beside the model."""
        return self.bottom.size_bytes

    def take_turn(self, step: int, channel: Channel) -> None:
        """Take part in step t: get what it starts from, train, send the result."""
        ready = Message("ready", step, self.number, fields={"held": self.held})
        turn = Message.from_bytes(channel.request(ready.to_bytes()), "turn", step, self.number)
        result = Message("result", step, self.number, self.train(turn, channel))
        Message.from_bytes(channel.request(result.to_bytes()), "end", step, self.number).only()

    @abstractmethod
    def train(self, turn: Message, channel: Channel) -> dict[str, Tensor]:
        """Run the client's part of a step and return its result."""

    def local_step(self, step: int, e: int, batch: Batch, open_top: OpenTop) -> StepGradients:
        """Return scalars [q] and g_ZO of HO-FL's local step with this top."""
        setting, model = self.setting, self.model
        model.w[: len(self.bottom.w)].copy_(self.bottom.w)
        directions = setting.directions(model.layout, step, self.number)
        site = Site(model, setting.boundary, directions, e)
        parts = LocalParts(ZerothOrder(setting.rule), self._surrogate, open_top)
        return hybrid_gradients(site, [batch.to(model.device)], parts)
