"""The server's step: how w moves by a round's aggregated update.

The paper adds the update, Eq. (10). A server with memory takes the negative update for a gradient
and keeps something of the rounds before (Hsu et al., 2019; Reddi et al., 2021). What it keeps is
part of ``ServerState``, hence of every checkpoint, and is never sent.

To add a rule, enter ``(**options) -> ServerStep`` in ``SERVER_STEPS``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from hofl.core.errors import HoflError
from hofl.rules import Part

Memory = Mapping[str, Tensor]
"""What is kept from round to round, by name, float32."""


class ServerStep(Protocol):
    """A rule for the server's step; it has no state of its own, so a round can be repeated.

    One that moves w by the update itself has a true attribute ``adds``: only then can a client that
    was away repeat a round from what its cohort sent.
    """

    adds: bool

    def __call__(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return how far w moves, float64 [d], and what is kept for the next round.

        Args:
            update: the cohort's aggregated update, float64 [d].
            memory: what the round before kept; empty in the first.
        """
        ...


class Add:
    """w_{t+1} = w_t + update, as in the paper."""

    adds = True

    def __call__(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the update itself; keep nothing."""
        return update, {}


class Momentum:
    """FedAvgM: v_{t+1} = beta v_t + update and w_{t+1} = w_t + lr v_{t+1}, with v_0 = 0.

    In the long run it moves lr / (1 - beta) times as far as the updates.

    Args:
        beta: share of the velocity that is kept, in [0, 1).
        lr: the server's learning rate.
    """

    adds = False

    def __init__(self, beta: float = 0.5, lr: float = 1.0) -> None:
        if not _number(beta) or not 0 <= beta < 1:
            raise HoflError(f"momentum's beta must lie in [0, 1), got {beta!r:.40}.")
        if not _number(lr) or not 0 < lr < math.inf:
            raise HoflError(f"momentum's lr must be a positive finite number, got {lr!r:.40}.")
        self._beta, self._lr = beta, lr

    def __call__(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return lr v; keep v."""
        v = update + self._beta * memory["v"].double() if memory else update
        kept = v.float()  # what a checkpoint holds, so that a resumed run has the same bits
        return self._lr * kept.double(), {"v": kept}


ADD = Add()
SERVER_STEPS: dict[str, Callable[..., ServerStep]] = {"add": Add, "momentum": Momentum}


def server_step_of(part: Part) -> ServerStep:
    """Make the server's step that a method names."""
    if part.name not in SERVER_STEPS:
        known = ", ".join(SERVER_STEPS)
        raise HoflError(f"unknown server_step {part.name!r:.40}: choose one of {known}.")
    made: ServerStep = part.made_by(SERVER_STEPS[part.name])
    return made


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
