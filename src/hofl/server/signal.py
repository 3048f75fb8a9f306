"""How much of the bottom's updates a cohort has in common: signal against noise, round by round.

For independent updates Delta_i with mean a, products of two of them have expectation ||a||^2 and
squares E||Delta||^2. The sum of all products is ||sum Delta||^2 - sum ||Delta||^2, so one running
sum is enough. Their ratio is the share of signal: near 0 for a bottom that learns noise, 1 for
clients that all send the same.
"""

import torch

from hofl.core.layout import Layout
from hofl.server.state import Contribution


class BottomSignal:
    """The share of signal in the updates of blocks below the boundary, by bottom rule.

    A block counts where at least two clients trained it below their boundary by the same rule.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._rules: dict[str, _Sums] = {}

    def add(self, contribution: Contribution) -> None:
        """Add one client's update."""
        plan = contribution.plan
        sums = self._rules.setdefault(plan.rule.bottom.name, _Sums(self._layout))
        for block in range(plan.boundary):
            place = self._layout.block_slice(block)
            part = contribution.delta[place].double()
            sums.total[place] += part
            sums.squares[block] += part.square().sum()
            sums.clients[block] += 1

    def shares(self) -> dict[str, float]:
        """Return each rule's share, which may be negative by chance; none for bottoms at rest."""
        shares = {name: sums.share() for name, sums in self._rules.items()}
        return {name: share for name, share in shares.items() if share is not None}


class _Sums:
    def __init__(self, layout: Layout) -> None:
        self.total = torch.zeros(layout.size, dtype=torch.float64)
        self.squares = torch.zeros(layout.num_blocks, dtype=torch.float64)
        self.clients = torch.zeros(layout.num_blocks, dtype=torch.float64)
        self._places = [layout.block_slice(block) for block in range(layout.num_blocks)]

    def share(self) -> float | None:
        lengths = torch.stack([self.total[place].square().sum() for place in self._places])
        n, used = self.clients, self.clients > 1
        products = ((lengths - self.squares) / (n * (n - 1)))[used].sum().item()
        squares = (self.squares / n)[used].sum().item()
        return products / squares if squares > 0 else None
