"""HiSo against DeComFL on quadratics with condition number 100, each at its best step size.

    python benchmarks/quadratic.py

One client, exact directional derivatives, q directions per round; a tenth of the coordinates has
curvature 1, the rest 0.01. Printed: rounds until the loss has fallen to a share of its start,
median of three seeds, and the step size that gave it.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from hofl.core.directions import DirectionKey
from hofl.core.layout import Layout
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.methods import METHODS
from hofl.rules import Part
from hofl.server.curvature import Curvature
from hofl.server.state import Contribution

LIMIT = 1000
RATES = [10.0**k for k in np.arange(-1.0, 0.6, 0.25)]


def rounds_to(
    share: float, size: int, q: int, nu: float, lr: float, seed: int, limit: int = LIMIT
) -> int:
    """Return in which round the loss is down to ``share`` of its start; nu = 0 is DeComFL."""
    layout = Layout(("x",), ((size,),), (0,), 1)
    stiff = size // 10
    a = np.concatenate([np.ones(stiff), np.full(size - stiff, 0.01)])
    x = (1 / np.sqrt(a)).astype(np.float32)  # every coordinate has the same share of the loss
    keeper = Curvature(layout, nu=nu)
    vectors, start = keeper.start(), 0.5 * (a * x * x).sum()
    directions = Part.of({"name": "curved", "nu": nu})
    rule = replace(METHODS["hiso"].local, directions=directions, q=q)
    for t in range(limit):
        loss = 0.5 * (a * x * x).sum()
        if loss < share * start or not loss < 1e6 * start:
            return t if loss < start else limit
        plan = RoundPlan(
            run="quadratic",
            round=t,
            client=0,
            boundary=1,
            key=DirectionKey(seed, t, 0),
            seed=seed,
            layout=layout.digest,
            rule=rule,
            w=torch.from_numpy(x),
            vectors=vectors,
        )
        u = plan.directions(layout)
        s = [(a * x) @ u.direction(0, j, layout.coordinates[0]) for j in range(q)]
        g = u.combine(np.array(s, np.float32), 0, 1, out=np.empty(size, np.float32))
        x = x - np.float32(lr) * g
        keeper.add(_contribution(plan, s))
        vectors = keeper.result(vectors)
    return limit


def best(
    share: float, size: int, q: int, nu: float, rates: Iterable[float] = RATES, seeds: int = 3
) -> tuple[int, float]:
    """Return the fewest rounds over the step sizes, and the step size."""
    found = []
    for lr in rates:
        runs = [rounds_to(share, size, q, nu, lr, seed) for seed in range(seeds)]
        found.append((int(np.median(runs)), lr))
    return min(found)


def _contribution(plan: RoundPlan, scalars: list[float]) -> Contribution:
    upload = Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=plan.boundary,
        layout=plan.layout,
        plan="",
        scalars=torch.tensor([scalars], dtype=torch.float32),
        difference=torch.zeros(0),
        metrics=ClientMetrics(loss=None, examples=0),
    )
    return Contribution(plan, upload, torch.zeros(len(plan.w)), 1.0, 1)


if __name__ == "__main__":
    print("| d | q | loss down to | DeComFL: rounds at step size | HiSo: rounds at step size |")
    print("|---|---|---|---|---|")
    for size, q, share in [
        (10, 5, 0.01),
        (10, 20, 0.01),
        (20, 5, 0.01),
        (50, 5, 0.1),
        (50, 5, 0.01),
    ]:
        found = [best(share, size, q, nu) for nu in (0.0, 0.05)]
        cells = " | ".join(f"{rounds} at {lr:.2g}" for rounds, lr in found)
        print(f"| {size} | {q} | {share:.0%} | {cells} |", flush=True)
