"""What the server carries from round to round, and what one client contributes to a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from hofl.core.layout import Layout
from hofl.messages import RoundPlan, Upload
from hofl.rules import DIRECTIONS, Part


@dataclass(frozen=True)
class ServerState:
    """All that a run carries from round to round: the state is the checkpoint.

    Args:
        w: w_t, float32 [d].
        round: t.
        vectors: what else the server keeps and sends with every plan, by name, float32.
    """

    w: Tensor
    round: int
    vectors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """One client's part in a round, checked and rebuilt.

    Args:
        plan: the plan that it carried out, with the boundary it used.
        upload: what it sent: scalars and metrics.
        delta: its full update [d].
        share: p_i, its sampling marginal.
        clients: N, the number of clients it was drawn from.
        examples: n_i, how many training examples it holds; 1 from a private device.
        start: w_0 of the run, for rules that rebuild w from it; None where nobody asks.
    """

    plan: RoundPlan
    upload: Upload
    delta: Tensor = field(repr=False)
    share: float
    clients: int
    examples: int = 0
    start: Tensor | None = field(default=None, repr=False)


class Keeper(Protocol):
    """Keeper of the vectors that a direction rule shares with the clients."""

    def start(self) -> dict[str, Tensor]:
        """Return the vectors of round 0."""
        ...

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution to the round."""
        ...

    def result(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the next round's vectors from this round's; forget the contributions."""
        ...


class NothingKept:
    """Keeper for direction rules that need nothing beside the key."""

    def start(self) -> dict[str, Tensor]:
        """Return no vectors."""
        return {}

    def add(self, contribution: Contribution) -> None:
        """Ignore the contribution."""

    def result(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the same vectors."""
        return dict(vectors)


def keeper_of(directions: Part, layout: Layout) -> Keeper:
    """Make the keeper of a direction rule."""
    keep = DIRECTIONS[directions.name].keep
    made: Keeper = NothingKept() if keep is None else directions.made_by(keep, layout)
    return made
