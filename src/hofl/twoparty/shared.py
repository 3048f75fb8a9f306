"""HO-SFL and HOSL: every step is shared. Scalars travel, never weights; all bottoms stay equal.

Step t: each client of the cohort catches up, sends z and labels, gets what its surrogate needs
(delta for HO-SFL, losses at perturbed z for HOSL), and sends q scalars. The server takes one step
of the top with the mean gradient, and keeps the mean scalars. A client repeats them, moments of
its optimizer included, when it next takes part: it then holds what every other client holds.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.errors import HoflError, printable
from hofl.core.layout import Layout
from hofl.local.site import Site
from hofl.local.top import Gradients
from hofl.rules import ESTIMATORS, SURROGATES, LocalRule
from hofl.twoparty.client import RemoteTop, SplitClient
from hofl.twoparty.exchange import Channel, Message, MessageRefused, on_the_wire
from hofl.twoparty.segment import Segment, learning_rate
from hofl.twoparty.server import SplitServer, Turn
from hofl.twoparty.setting import FIRST, Setting, Workflow


def shared_steps(rule: LocalRule, server_lr: float | None = None) -> Workflow:
    """Return the workflow of HO-SFL and HOSL.

    Args:
        rule: of the method.
        server_lr: of the top; the optimizer's own where it is None.
    """
    if rule.local_steps != 1:
        raise HoflError(
            f"shared steps are averaged one by one: set method.local_steps=1, got "
            f"{rule.local_steps}."
        )
    surrogate = SURROGATES[rule.surrogate.name]
    here = surrogate.gives_delta or surrogate.judges_alone
    if ESTIMATORS[rule.estimator.name].passes is None and not here:
        raise HoflError(
            f"a server answers with losses, of which {rule.estimator.name!r} makes no scalars: set "
            "method.estimator to forward or central."
        )
    return Workflow(
        client=SharedClient,
        server=SharedServer,
        shares_directions=True,
        server_lr=learning_rate(server_lr),
    )


def repeat_steps(
    bottom: Segment, means: Tensor, first: int, setting: Setting, layout: Layout
) -> None:
    """Take the steps first, first + 1, ... of a bottom again, from their mean scalars [n, q]."""
    for t, scalars in enumerate(means, start=first):
        g = torch.empty_like(bottom.w)
        directions = setting.directions(layout, t, client=0)
        directions.combine(scalars.numpy(), FIRST, setting.boundary, out=g.numpy())
        bottom.step(g, setting.rule.optimizer)


@dataclass
class SharedClient(SplitClient):
    """A client that holds its bottom, as of the last step it knows of."""

    _held: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = self.store.load(self.number)
        if kept is not None:
            self._held, self.bottom = kept

    @property
    def held(self) -> int:
        """Steps whose mean scalars the bottom has taken."""
        return self._held

    def train(self, turn: Message, channel: Channel) -> dict[str, Tensor]:
        """Catch up, then run one step and return its scalars; the mean of all comes later."""
        self.catch_up(turn)
        (batch,) = self.batches(turn.step, self.number)

        def open_top(site: Site, part: Batch, inputs: object) -> RemoteTop:
            return RemoteTop(channel, turn.step, self.number, part)

        return {"scalars": self.local_step(turn.step, FIRST, batch, open_top).scalars}

    def catch_up(self, turn: Message) -> None:
        """Repeat the steps that were missed from keys and mean scalars."""
        missed = turn.step - self._held
        if missed < 0:
            raise MessageRefused(f"the server is at step {turn.step}, this client at {self._held}")
        turn.only("keys", "scalars")
        keys = turn.tensor("keys", (missed,), torch.int64)
        means = turn.tensor("scalars", (missed, self.setting.rule.q))
        if keys.tolist() != list(range(self._held, turn.step)):
            raise MessageRefused(f"the steps after {self._held} are not those that were missed")
        repeat_steps(self.bottom, means, self._held, self.setting, self.model.layout)
        if missed:
            self._held = turn.step
            self.store.save(self.number, self._held, self.bottom)


class SharedServer(SplitServer):
    """Keeps the mean scalars of every step so far, [t, q]."""

    def start(self) -> Tensor:
        """Return no steps."""
        return torch.zeros(0, self.setting.rule.q)

    def offer(self, message: Message) -> dict[str, Tensor]:
        """Return keys and mean scalars of the steps that a client has not taken."""
        held = message.fields.get("held")
        if type(held) is not int or not 0 <= held <= self.step:
            raise MessageRefused(f"held is {printable(repr(held))}, not in 0..{self.step}")
        return {"keys": torch.arange(held, self.step), "scalars": self.kept[held:]}

    def take_gradient(self, turn: Turn, gradients: Gradients) -> dict[str, Tensor]:
        """Keep the gradient for the end of the step; return loss and delta."""
        if turn.gradient is not None:
            raise MessageRefused("a second batch in one step")
        turn.gradient = gradients.flat
        loss = {"loss": gradients.value.reshape(1).float().cpu()}
        return loss if gradients.delta is None else {**loss, "delta": on_the_wire(gradients.delta)}

    def take_result(self, message: Message, turn: Turn) -> dict[str, Tensor]:
        """Return the scalars."""
        message.only("scalars")
        if turn.gradient is None:
            raise MessageRefused("a result before any activation")
        return {"scalars": message.tensor("scalars", (self.setting.rule.q,))}

    def close(self, done: list[Turn]) -> None:
        """Average scalars and gradients; move the top once.

        The mean is taken here alone: each client's loss is its own, not divided by K.
        """
        scalars = [turn.result["scalars"] for turn in done]
        gradients = [turn.gradient for turn in done if turn.gradient is not None]
        mean = torch.stack(scalars).double().mean(0).float()
        self.kept = torch.cat([self.kept, mean[None]])
        self.top.step(
            torch.stack(gradients).cpu().double().mean(0).float(), self.setting.top_optimizer
        )

    def bottom(self, start: Tensor) -> Tensor:
        """Return the bottom that every client has once it has caught up, from w_0 [d_ZO]."""
        bottom = Segment.start(start, self.setting.rule.optimizer)
        repeat_steps(bottom, self.kept, 0, self.setting, self.model.layout)
        return bottom.w
