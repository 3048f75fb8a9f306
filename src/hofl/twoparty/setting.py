"""What both roles of a split workflow agree on before the first step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hofl.core.directions import DirectionKey, Directions
from hofl.core.layout import Layout
from hofl.core.optim import Optimizer
from hofl.rules import DIRECTIONS, SURROGATES, LocalRule

if TYPE_CHECKING:
    from hofl.models.split import SplitModel
    from hofl.twoparty.client import Batches, SplitClient
    from hofl.twoparty.server import SplitServer
    from hofl.twoparty.store import ClientStore

FIRST = 1
"""Local steps are counted from 1: the check of the scalars at 2 mu, which would be two more
uploads, belongs to step 0."""


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """How the two roles work together: what ``hofl.workflows`` makes.

    Args:
        client: makes a client's role.
        server: makes the server's role, before the first step.
        shares_directions: all clients of a step have the same ones.
        server_lr: learning rate of the top, where it is not the bottom's.
    """

    client: "Callable[[SplitModel, Setting, int, Batches, ClientStore], SplitClient]"
    server: "Callable[[SplitModel, Setting], SplitServer]"
    shares_directions: bool
    server_lr: float | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A split workflow on one model.

    Args:
        rule: surrogate, estimator, q, mu, optimizer and local steps of the client.
        boundary: b, the same on every client.
        seed: of all directions, known to every client.
        workflow: how the roles work together.
    """

    rule: LocalRule
    boundary: int
    seed: int
    workflow: Workflow

    @property
    def gives_delta(self) -> bool:
        """Whether the boundary gradient is sent down."""
        return SURROGATES[self.rule.surrogate.name].gives_delta

    @property
    def top_optimizer(self) -> Optimizer:
        """The server's optimizer: the rule's, at the server's own learning rate."""
        lr = self.workflow.server_lr
        return self.rule.optimizer if lr is None else replace(self.rule.optimizer, lr=lr)

    def directions(self, layout: Layout, step: int, client: int) -> Directions:
        """Make the directions of a step: the cohort's, or one client's own."""
        stream = 0 if self.workflow.shares_directions else client + 1
        part = self.rule.directions
        key = DirectionKey(self.seed, step, stream)
        made: Directions = part.made_by(DIRECTIONS[part.name].make, key, layout, {})
        return made
