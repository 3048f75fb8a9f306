"""The server of a split workflow: it holds the top, answers clients, and ends each step.

Every message is checked before anything is done with it (``exchange``). What the server keeps for
the clients beside the top, and what becomes of their results, are the workflow's (``shared``,
``alone``).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.core.errors import HoflError, printable
from hofl.core.wire import HEADER_BYTES, message_kind
from hofl.local.top import Gradients, LocalTop
from hofl.models.split import SplitModel
from hofl.twoparty.exchange import Message, MessageRefused, note
from hofl.twoparty.labels import batch_from
from hofl.twoparty.ledger import ByteLedger, Category
from hofl.twoparty.segment import Segment
from hofl.twoparty.setting import Setting

MOST_TOKENS = 2**20
"""Tokens of a batch; a longer message is refused before it is parsed."""


def most_bytes(width: int, kept: int) -> int:
    """Return the most bytes of a message: z, labels, and weights or scalars of ``kept`` values."""
    return 4 * MOST_TOKENS * (width + 8) + 8 * kept + HEADER_BYTES


@dataclass
class Turn:
    """What one client of the cohort has done in the step that is under way.

    Args:
        top: on the batch that the client sent last.
        gradient: of the top, where it waits for the end of the step.
        before: the top before this client moved it, where clients do.
        losses: at the top, one per batch.
        examples: seen.
        result: what the client sent at its end; empty until then.
    """

    top: LocalTop | None = None
    gradient: Tensor | None = None
    before: Segment | None = None
    losses: list[float] = field(default_factory=list)
    examples: int = 0
    result: dict[str, Tensor] = field(default_factory=dict)


class SplitServer(ABC):
    """The server; step, top and what is kept are its whole state.

    Args:
        model: at least the top half.
        setting: what both roles agreed on.
    """

    def __init__(self, model: SplitModel, setting: Setting) -> None:
        self.model, self.setting = model, setting
        cut = model.layout.cut(setting.boundary)
        self.top = Segment.start(model.w[cut:].cpu(), setting.top_optimizer)
        self.kept = self.start()
        self.step = 0
        self.ledger = ByteLedger()
        self._turns: dict[int, Turn] = {}

    @abstractmethod
    def start(self) -> Tensor:
        """Return what is kept for the clients before the first step."""

    @abstractmethod
    def offer(self, message: Message) -> dict[str, Tensor]:
        """Return what a client starts from."""

    @abstractmethod
    def take_gradient(self, turn: Turn, gradients: Gradients) -> dict[str, Tensor]:
        """Take in the top's gradient at a client's batch; return what the client is sent."""

    @abstractmethod
    def take_result(self, message: Message, turn: Turn) -> dict[str, Tensor]:
        """Return a client's result, checked."""

    @abstractmethod
    def close(self, done: list[Turn]) -> None:
        """End the step with the turns of those that gave a result."""

    @abstractmethod
    def bottom(self, start: Tensor) -> Tensor:
        """Return the bottom [d_ZO] after the steps so far; it was ``start`` before them."""

    def begin(self, cohort: Sequence[int]) -> None:
        """Open step t for a cohort."""
        self.ledger, self._turns = ByteLedger(), {client: Turn() for client in cohort}
        self.load_top()

    def load_top(self) -> None:
        """Set the model's top to the server's."""
        self.model.w[len(self.model.w) - len(self.top.w) :].copy_(self.top.w)

    def answer(self, client: int, data: bytes) -> bytes:
        """Answer one message of a client; the bytes of a refused one count, too.

        Raises:
            MessageRefused: it does not belong to this step, or holds what it must not.
        """
        try:
            message, reply = self._answered(client, data)
        except MessageRefused:
            self.ledger.note({Category.REFUSED_UP: len(data)})
            raise
        answer = reply.to_bytes()
        note(self.ledger, message, data)
        note(self.ledger, reply, answer)
        return answer

    def _answered(self, client: int, data: bytes) -> tuple[Message, Message]:
        """Return a client's message, parsed, and the reply to it."""
        if len(data) > self.most_bytes:
            raise MessageRefused(f"{len(data)} bytes, at most {self.most_bytes} are expected")
        if client not in self._turns:
            raise MessageRefused(f"client {client} is not in the cohort of step {self.step}")
        kind = message_kind(data, MessageRefused)
        handler = {"ready": self._ready, "activation": self._activation, "result": self._result}
        if kind not in handler:
            raise MessageRefused(f"{printable(kind)!r} is not a message of a client")
        message = Message.from_bytes(data, kind, self.step, client)
        turn = self._turns[client]
        if turn.result:
            raise MessageRefused(f"{kind} after the result of step {self.step}")
        return message, handler[kind](message, turn)

    @property
    def most_bytes(self) -> int:
        """The longest message that a client may send."""
        return most_bytes(self._width, self.kept.numel())

    @property
    def _width(self) -> int:
        """D."""
        width: int = self.model.config.get_text_config().hidden_size
        return width

    def drop(self, client: int) -> None:
        """Leave a client out of the step: what it sent does not count."""
        before = self._turns[client].before
        if before is not None:
            self.top = before
            self.load_top()
        self._turns[client] = Turn()

    def finish(self, refused: Mapping[int, str]) -> tuple[float | None, int]:
        """End the step; return the mean loss at the top and the examples that were seen."""
        done = [turn for turn in self._turns.values() if turn.result]
        if not done:
            client, reason = next(iter(refused.items()), (None, "nobody was asked"))
            advice = "Lower the learning rate" if "finite" in reason else "Fix that and resume"
            raise HoflError(
                f"step {self.step + 1}: no client gave a result (client {client}: {reason}). "
                f"{advice}; the last good step is kept."
            )
        self.close(done)
        if not torch.isfinite(self.top.w).all() or not torch.isfinite(self.kept).all():
            raise HoflError(
                f"step {self.step + 1}: the parameters are not finite. Lower the learning rate; "
                "the last good step is kept."
            )
        self.step += 1
        losses = [loss for turn in done for loss in turn.losses]
        loss = sum(losses) / len(losses) if losses else None
        return loss, sum(turn.examples for turn in done)

    def probe(self, message: Message, turn: Turn) -> Tensor:
        """Return the loss at a perturbed activation of the batch that is open; nothing moves."""
        message.only("z")
        if turn.top is None:
            raise MessageRefused("an activation without labels came before any with them")
        tokens = len(turn.top.batch.texts.tokens)
        z = message.tensor("z", (1, tokens, self._width))
        with torch.no_grad():
            return turn.top.loss(z.to(self.model.device, self.model.compute_dtype))

    def _ready(self, message: Message, turn: Turn) -> Message:
        message.only()
        return Message("turn", self.step, message.client, self.offer(message))

    def _activation(self, message: Message, turn: Turn) -> Message:
        training = message.fields.get("train")
        if type(training) is not bool:
            raise MessageRefused(f"train is {printable(repr(training))}, not true or false")
        if not training:
            loss = self.probe(message, turn).reshape(1).float().cpu()
            return Message("feedback", self.step, message.client, {"loss": loss})
        model = self.model
        width, words = self._width, model.base.get_output_embeddings().weight.shape[0]
        z, batch = batch_from(message, width, words)
        z, batch = z.to(model.device, model.compute_dtype), batch.to(model.device)
        turn.top = LocalTop(model, model.inputs(batch.texts), batch, self.setting.boundary)
        gradients = turn.top.gradients(z, to_boundary=self.setting.gives_delta)
        if not gradients.value.isfinite() or not gradients.flat.isfinite().all():
            raise MessageRefused("loss or gradient at this z are not finite")
        turn.losses.append(gradients.value.item())
        turn.examples += batch.examples
        return Message("feedback", self.step, message.client, self.take_gradient(turn, gradients))

    def _result(self, message: Message, turn: Turn) -> Message:
        turn.result = self.take_result(message, turn)
        turn.top = None  # free its activations
        return Message("end", self.step, message.client)
