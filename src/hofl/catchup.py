"""Catch-up: a client that was away makes w_t from what it holds and little more, bit for bit.

DeComFL: where directions are shared and scalars are averaged before the replay, a round is E q
numbers and a key. A client that holds w_r gets those of rounds r..t-1 with its plan and takes the
server's own steps from them, keeper included: model first, then what the keeper makes of the same
round. FedKSeed: with a finite pool of directions, w_t follows from w_0 and one number per
candidate, which the plan has anyway.

A client's upload repeats the digest of the whole plan, so the server sees if it arrived elsewhere.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from hofl.algorithm import server_round
from hofl.core.directions import TOTALS, DirectionKey
from hofl.core.errors import HoflError, PlanRefused, printable
from hofl.core.layout import Layout
from hofl.core.wire import pack_message, unpack_message
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.methods import Method
from hofl.rules import DIRECTIONS
from hofl.server.aggregate import MeanOfScalars, aggregation_of
from hofl.server.candidates import rebuilt
from hofl.server.state import Contribution, ServerState, keeper_of

_KEY = struct.Struct("<QQI")
_NOBODY = ClientMetrics(loss=None, examples=0)


@dataclass(frozen=True)
class MissedRound:
    """What made w_{r+1} of w_r: the cohort's key and its mean scalars [E][q]."""

    key: DirectionKey
    scalars: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class CatchUp:
    """Down: a plan without w and the other vectors, and the rounds from which they follow.

    Args:
        plan: the plan, its w and vectors empty.
        since: r, the round whose w the client holds.
        keys: of rounds r..t-1, uint8 [t - r, 20].
        scalars: their mean scalars, float32 [t - r, E, q].
    """

    plan: RoundPlan
    since: int
    keys: Tensor = field(repr=False)
    scalars: Tensor = field(repr=False)

    @classmethod
    def of(cls, plan: RoundPlan, missed: Sequence[MissedRound]) -> Self:
        """Make the message for a client that missed these rounds, the last ones before the plan."""
        keys = [list(_KEY.pack(*each.key)) for each in missed]
        means = torch.tensor([each.scalars for each in missed], dtype=torch.float32)
        return cls(
            plan=replace(plan, w=torch.zeros(0), vectors={}),
            since=plan.round - len(missed),
            keys=torch.tensor(keys, dtype=torch.uint8).view(-1, _KEY.size),
            scalars=means.view(-1, plan.rule.local_steps, plan.rule.q),
        )

    def to_bytes(self) -> bytes:
        """Serialise."""
        inner = self.plan.to_bytes()
        return pack_message(
            "catch-up",
            {"since": self.since},
            {
                "plan": torch.frombuffer(bytearray(inner), dtype=torch.uint8),
                "keys": self.keys,
                "scalars": self.scalars,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse bytes that should come from the server.

        Raises:
            PlanRefused: they are not a catch-up.
        """
        header, tensors = unpack_message("catch-up", data, PlanRefused)
        try:
            plan = RoundPlan.from_bytes(tensors.pop("plan").numpy().tobytes())
            message = cls(plan=plan, since=header.pop("since"), **tensors)
        except (TypeError, KeyError) as error:
            raise PlanRefused(f"malformed catch-up: {printable(error)}") from None
        since = message.since
        if header or type(since) is not int or not 0 <= since <= plan.round:
            raise PlanRefused(f"malformed catch-up: since {printable(since)}, round {plan.round}")
        rounds = plan.round - since
        for name, shape, kind in (
            ("keys", (rounds, _KEY.size), torch.uint8),
            ("scalars", (rounds, plan.rule.local_steps, plan.rule.q), torch.float32),
        ):
            tensor = getattr(message, name)
            if tuple(tensor.shape) != shape or tensor.dtype != kind:
                raise PlanRefused(f"{name} of a catch-up is {tuple(tensor.shape)}, not {shape}")
        if not torch.isfinite(message.scalars).all():
            raise PlanRefused("scalars of a catch-up are not finite")
        return message

    def missed(self) -> list[MissedRound]:
        """Return the rounds in their order."""
        rows = zip(self.keys, self.scalars, strict=True)
        return [
            MissedRound(DirectionKey(*_KEY.unpack(bytes(key.tolist()))), scalars.tolist())
            for key, scalars in rows
        ]

    def applied(self, held: ServerState, layout: Layout) -> RoundPlan:
        """Return the whole plan, from the state that the client holds."""
        if held.round != self.since:
            raise PlanRefused(f"the catch-up starts at round {self.since}, I hold {held.round}")
        for each in self.missed():
            held = _repeated(replace(self.plan, round=held.round, key=each.key), held, each, layout)
        return replace(self.plan, w=held.w, vectors=held.vectors)


Missed = Callable[[int], Sequence[MissedRound] | None]
"""Round r -> what happened from r on until now; None where not all of it can be repeated."""


class Held(Protocol):
    """What simulated clients hold between rounds, and what can be left out of plans for it."""

    def shorter(self, plan: RoundPlan, missed: Missed) -> bytes | None:
        """Return a plan's short form for its client; None without one."""
        ...

    def received(self, client: int, message: bytes) -> RoundPlan:
        """Return the plan that a message means to a client."""
        ...


class HeldModels:
    """What each simulated client holds: the w_r and vectors of its last participation.

    Args:
        layout: the shared coordinates.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._held: dict[int, ServerState] = {}

    def round_of(self, client: int) -> int | None:
        """Return r, or None for a client that holds nothing."""
        return self._held[client].round if client in self._held else None

    def shorter(self, plan: RoundPlan, missed: Missed) -> bytes | None:
        """Return the catch-up from the w that the client holds, if it holds one."""
        since = self.round_of(plan.client)
        rounds = None if since is None else missed(since)
        return None if rounds is None else CatchUp.of(plan, rounds).to_bytes()

    def received(self, client: int, message: bytes) -> RoundPlan:
        """Return the plan that a message means to a client, and hold its w from now on."""
        try:
            plan = RoundPlan.from_bytes(message)
        except PlanRefused:
            catch_up = CatchUp.from_bytes(message)
            if client not in self._held:
                raise HoflError("a catch-up came, but this client holds no model.") from None
            plan = catch_up.applied(self._held[client], self._layout)
        self._held[client] = ServerState(plan.w, plan.round, plan.vectors)
        return plan


class HeldStart:
    """Clients that hold w_0, as all do whose adapter follows from the configuration (FedKSeed).

    Args:
        layout: the shared coordinates.
        start: w_0.
    """

    def __init__(self, layout: Layout, start: Tensor) -> None:
        self._layout, self._start = layout, start
        self._made: tuple[Tensor, Tensor] | None = None

    def shorter(self, plan: RoundPlan, missed: Missed) -> bytes | None:
        """Return the plan without w, where w_0 and the plan's totals make the same bits."""
        made = torch.equal(self._rebuilt(plan), plan.w)
        return replace(plan, w=torch.zeros(0)).to_bytes() if made else None

    def received(self, client: int, message: bytes) -> RoundPlan:
        """Return the plan that a message means to a client, with w in place."""
        plan = RoundPlan.from_bytes(message)
        return plan if len(plan.w) else replace(plan, w=self._rebuilt(plan))

    def _rebuilt(self, plan: RoundPlan) -> Tensor:
        """Return w_t; a cohort's clients make the same, so a simulation makes it once."""
        if TOTALS not in plan.vectors:
            raise PlanRefused("a plan came without w and without totals to make it from")
        totals = plan.vectors[TOTALS]
        if self._made is None or not torch.equal(self._made[0], totals):
            self._made = totals, rebuilt(plan, totals, self._start, self._layout)
        return self._made[1]


def catches_up(method: Method, layout: Layout) -> bool:
    """Tell whether rounds of a method may follow from mean scalars alone."""
    directions = DIRECTIONS[method.local.directions.name]
    kept = directions.keep is None or directions.kept_from_means
    replayable = hasattr(aggregation_of(method.aggregation, layout), "replayable")
    return replayable and kept and method.local.shares_directions


def rebuilds(method: Method, layout: Layout) -> bool:
    """Tell whether w of a method follows from w_0 and what the server keeps."""
    return getattr(aggregation_of(method.aggregation, layout), "from_start", False)


def held_by(method: Method, layout: Layout, start: Tensor) -> Held | None:
    """Return what clients of a method hold between rounds; None where plans are always whole."""
    if rebuilds(method, layout):
        return HeldStart(layout, start)
    return HeldModels(layout) if catches_up(method, layout) else None


def _repeated(
    plan: RoundPlan, held: ServerState, missed: MissedRound, layout: Layout
) -> ServerState:
    """Take the server's step of one round, from its mean scalars as if one client had sent them."""
    plan = replace(plan, w=held.w, vectors=held.vectors)
    upload = Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=plan.boundary,
        layout=plan.layout,
        plan="",
        scalars=torch.tensor(missed.scalars, dtype=torch.float32),
        difference=torch.zeros(0),
        metrics=_NOBODY,
    )
    alone = Contribution(plan, upload, torch.zeros(layout.size), share=1.0, clients=1)
    keeper = keeper_of(plan.rule.directions, layout)
    return server_round(held, [alone], MeanOfScalars(layout), keeper)
