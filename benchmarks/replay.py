"""Server replay: rebuilding a client's bottom segment over merely drawing its directions.

``hofl.algorithm.replay`` for E local steps at boundary 22 of SmolLM2-135M, with scalars that a
client could have sent, against ``hofl.core.directions.direction`` for the very same keys.
What exceeds 1 is the combination and the optimizer.
"""

from collections.abc import Callable

import torch
from harness import Cell, Subject, interleave

from hofl import load_model
from hofl.algorithm import replay
from hofl.core.directions import DirectionKey, direction
from hofl.core.layout import Layout
from hofl.core.optim import SGD, AdamW, Optimizer
from hofl.messages import RoundPlan
from hofl.models.adapters import lora_start
from hofl.rules import LocalRule

MODEL, BOUNDARY, STEPS, Q, SEED = "smollm2-135m-instruct", 22, 5, 2, 0
OPTIMIZERS: dict[str, Optimizer] = {"SGD": SGD(lr=1e-2), "AdamW": AdamW(lr=1e-3)}
TARGETS = {"SGD": 1.5, "AdamW": 3.0}
LOOPS = 3
COLUMNS = {
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".2f"),
    "min_ms": ("min ms", ".2f"),
    "ratio": ("time / directions alone", ".2f"),
    "ratio_of_minima": ("by minima", ".2f"),
    "target_at_most": ("target <=", ".1f"),
}


def measure(repeats: int) -> Subject:
    """Replay with either optimizer and the directions alone, interleaved."""
    layout = load_model(MODEL, weights="random", device="cpu").split.layout
    scalars = torch.randn(STEPS, Q, generator=torch.Generator().manual_seed(SEED))
    plans = {name: _plan(optimizer, layout) for name, optimizer in OPTIMIZERS.items()}

    def replay_with(plan: RoundPlan) -> Callable[[], object]:
        return lambda: replay(plan, scalars, layout)

    variants = {name: replay_with(plan) for name, plan in plans.items()}
    variants["directions"] = lambda: _directions(plans["SGD"], layout)
    times = interleave(variants, repeats, loops=LOOPS)

    alone = times["directions"]
    rows: list[dict[str, Cell]] = []
    for name, timing in times.items():
        row: dict[str, Cell] = {
            "variant": "directions alone" if timing is alone else f"replay, {name}",
            "median_ms": 1e3 * timing.median,
            "min_ms": 1e3 * timing.best,
            "ratio": timing.median / alone.median,
            "ratio_of_minima": timing.best / alone.best,
            "target_at_most": TARGETS.get(name),
        }
        rows.append(row)
    size = layout.cut(BOUNDARY)
    title = f"replay: boundary {BOUNDARY} of {MODEL} ({size} scalars), E = {STEPS}, q = {Q}"
    samples = {name: timing.samples for name, timing in times.items()}
    return Subject("replay", title, COLUMNS, rows, samples, TARGETS)


def _plan(optimizer: Optimizer, layout: Layout) -> RoundPlan:
    return RoundPlan(
        run="benchmark",
        round=0,
        client=0,
        boundary=BOUNDARY,
        key=DirectionKey(SEED, 0, 0),
        seed=SEED,
        layout=layout.digest,
        rule=LocalRule(optimizer=optimizer, local_steps=STEPS, q=Q),
        w=lora_start(layout, SEED),
    )


def _directions(plan: RoundPlan, layout: Layout) -> None:
    """Draw what a replay draws, in its order, and drop it."""
    for e in range(STEPS):
        for c in layout.bottom(BOUNDARY):
            for j in range(Q):
                direction(plan.key, e, j, c.index, c.size)
