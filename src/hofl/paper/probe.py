"""Measure what the runs of a block take here: short real runs of its lightest and heaviest arm.

They are an ordinary comparison of two rounds, run as many at a time as the real ones, so that
starting up, evaluation and contention are in the numbers. Other arms follow by block passes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from hofl.comparing.plan import Arm, Comparison
from hofl.comparing.schedule import Progress, carry_out
from hofl.core.errors import HoflError
from hofl.experiment.config import ExperimentConfig, method_of
from hofl.paper.estimate import EVALUATED, operations, passes
from hofl.paper.scaling import Pace, Scale, scaled
from hofl.paper.settings import MODELS
from hofl.paper.studies import Block
from hofl.reporting.cells import Cell, read_cells

ROUNDS = 2
"""Of a probe: the first round also measures memory, the second is timed."""
EXAMPLES = 32
Watch = Callable[[Progress], None]


@dataclass
class _Clock:
    """Notes when cells were first seen running, and when they were done."""

    watch: Watch
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        for name in progress.running:
            self.began.setdefault(name, now)
        for name in progress.done:
            self.ended.setdefault(name, now)
        self.watch(progress)


def probe(block: Block, path: Path, at_once: int, watch: Watch) -> Pace:
    """Run short runs of a block in a folder, and return its pace.

    Raises:
        HoflError: a probe failed, with its reason.
    """
    work = _work_by_arm(block)
    short = _shortened(block, work)
    comparison = Comparison(path, short.base, short.arms, short.seeds)
    comparison.write()
    clock = _Clock(watch)
    carry_out(comparison, at_once, clock)
    cells = read_cells([path])
    for cell in cells:
        if cell.state != "finished":
            raise HoflError(f"{block.name} cannot be run here: {cell.problem or cell.state}")
    return _pace(block, cells, clock, work)


def least_seconds(blocks: Sequence[Block], per_second: float) -> float:
    """Return the least time of probing blocks of the paper: their operations at a given speed."""
    short = [_shortened(block, _work_by_arm(block)) for block in blocks]
    return sum(map(operations, short)) / per_second


def _work_by_arm(block: Block) -> dict[str, float]:
    return {label: _work(block, config) for label, config in block.configs().items()}


def _shortened(block: Block, work: dict[str, float]) -> Block:
    """Return a block with the lightest and the heaviest arm, of ``ROUNDS`` rounds and one seed."""
    ends = {min(work, key=work.__getitem__), max(work, key=work.__getitem__)}
    arms = tuple(arm for arm in block.arms if arm.label in ends)
    (short,) = scaled([replace(block, arms=arms)], Scale(ROUNDS, block.seeds[:1], EXAMPLES))
    same = (Arm(arm.label, tuple(c for c in arm.changes if "rounds" not in c)) for arm in arms)
    return replace(short, arms=tuple(same))


def _pace(block: Block, cells: list[Cell], clock: _Clock, work: dict[str, float]) -> Pace:
    starts, rates, per_example = [], [], []
    for cell in cells:
        assert cell.summary is not None
        name = cell.path.name
        if name in clock.began:  # else it was finished before, by a probe that was stopped
            wall = clock.ended[name] - clock.began[name]
            starts.append(wall - cell.summary.seconds - cell.summary.eval_seconds)
        rates.append(cell.records[-1].seconds / work[cell.label])
        scored = sum(record.scores["examples"] for record in cell.records if record.scores)
        per_example.append(cell.summary.eval_seconds / scored)
    return Pace(
        start=fmean(starts) if starts else 0.0,
        rounds={label: fmean(rates) * amount for label, amount in work.items()},
        example=fmean(per_example),
        test_examples=EVALUATED[block.task],
    )


def _work(block: Block, config: ExperimentConfig) -> float:
    """Return the block passes of a round, up to a factor that all arms of a block share."""
    chosen = method_of(config)
    model = MODELS[block.model]
    boundaries = chosen.boundary(np.array(model.tiers), model.blocks).tolist()
    step = fmean(passes(chosen.local, boundary, model.blocks) for boundary in boundaries)
    return step * chosen.local.local_steps
