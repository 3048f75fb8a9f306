"""HiSo's curvature: a diagonal H that the server learns from the averaged zeroth-order estimates.

After a round, with Dx the cohort's mean gradient estimate of the last local step,

    H <- (1 - nu) H + nu (Dx * Dx + eps),    H_0 = 1.

Directions are H^(-1/2) * normal (``hofl.core.directions``). Dx is built with the H that the round's
directions were scaled by, so the order matters: first the model's step, then H.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hofl.core.directions import HESSIAN
from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.server.pooling import PooledScalars
from hofl.server.state import Contribution

LARGEST = 1e30
"""Cap of H: one wild round must not leave directions of length zero, or plans that are refused."""


class Curvature:
    """Keeper of H. Coordinates that nobody probed in a round keep their value.

    Every operation is rounded once, so a client that replays missed rounds gets the same bits.

    Args:
        layout: the shared coordinates.
        nu: weight of the newest estimate; 0 leaves H at one, which is DeComFL.
        eps: added to the squares, so that H stays positive.
        shared: of the directions; the scalars say the same.
    """

    def __init__(
        self, layout: Layout, nu: float = 0.05, eps: float = 1e-8, shared: bool = False
    ) -> None:
        if not (type(nu) in (int, float) and 0 <= nu < 1):
            raise HoflError(f"nu must lie in [0, 1), got {nu!r:.40}.")
        if not (type(eps) in (int, float) and 0 < eps <= 1):
            raise HoflError(f"eps must lie in (0, 1], got {eps!r:.40}.")
        self._layout, self._nu, self._eps = layout, nu, eps
        self._scalars = PooledScalars()

    def start(self) -> dict[str, Tensor]:
        """Return H = 1."""
        return {HESSIAN: torch.ones(self._layout.size)}

    def add(self, contribution: Contribution) -> None:
        """Take in one client's scalars."""
        self._scalars.add(contribution)

    def result(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the next round's H [d]."""
        total = torch.zeros(self._layout.size, dtype=torch.float64)
        count = torch.zeros(self._layout.size, dtype=torch.float64)
        for pool in self._scalars:
            plan, last = pool.plan, pool.plan.rule.local_steps - 1
            g = torch.zeros(self._layout.cut(plan.boundary))
            directions = plan.directions(self._layout)
            directions.combine(pool.mean()[last].numpy(), last, plan.boundary, out=g.numpy())
            total[: len(g)] += g.double() * pool.count
            count[: len(g)] += pool.count
        self._scalars = PooledScalars()
        old, probed = vectors[HESSIAN], count > 0
        step = torch.where(probed, total / count.clamp(min=1), 0.0).float()  # Dx
        fresh = (1.0 - self._nu) * old + self._nu * (step * step + self._eps)
        return {HESSIAN: torch.where(probed, fresh, old).nan_to_num(LARGEST).clamp(max=LARGEST)}
