"""A smaller version of a study for a time budget, and what it leaves out.

Rounds, seeds and test examples are what is reduced; a run of few rounds needs larger steps. All
runs of a study get the same rounds, so that its rows stay comparable. The times come from a probe
(``hofl.paper.probe``), never from a guess.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from pathlib import Path
from typing import Any

from hofl.comparing.plan import Arm, changed, with_threads
from hofl.core.errors import HoflError
from hofl.data.tasks import BENCHMARKS
from hofl.experiment.changes import dotted
from hofl.experiment.runs import plain_values
from hofl.paper.settings import MODELS
from hofl.paper.studies import Block

SHARE = 0.9
"""Of a budget that is planned; the rest is for what a probe cannot see, such as other load."""
SCALED = "scaled"
"""Ends the name of every smaller run, which reports show."""
ENOUGH_ROUNDS = 20
"""A seed is given up rather than train fewer rounds than this."""
FEWEST_ROUNDS = 2
LEARNING_RATE = 1e-3
"""Of a shortened run: 1e-5 hardly moves an adapter in a few dozen rounds."""
EVALUATION_SHARE = 0.25
"""Most of the planned time that evaluations may take."""
EXAMPLES = (0, 2000, 1000, 500, 200, 100)
"""Test examples to choose from, 0 being all."""


@dataclass(frozen=True)
class Scale:
    """The size of a smaller version.

    Args:
        rounds: in place of the paper's 160; other numbers of rounds follow in proportion.
        seeds: of every arm.
        examples: of the test set; 0 is all.
    """

    rounds: int
    seeds: tuple[int, ...]
    examples: int = 0


@dataclass(frozen=True)
class Pace:
    """What one run of a block takes, in measured seconds.

    Args:
        start: outside of rounds and evaluations: libraries, model, data.
        rounds: label of an arm -> seconds of one of its rounds.
        example: seconds to score one test example.
        test_examples: size of the test set.
    """

    start: float
    rounds: Mapping[str, float]
    example: float
    test_examples: int


def substituted(blocks: Sequence[Block], model: str | None, window: int) -> tuple[Block, ...]:
    """Return blocks for the model at hand, in FP32; with a substitute those of one model alone.

    Args:
        blocks: of the paper.
        model: to train in place of the paper's, cut at the same shares of its blocks.
        window: the longest text that it reads.
    """
    adapted = []
    for block in blocks:
        if model is not None and block.model != blocks[0].model:
            continue  # the same runs again: the substitute stands for the first model
        changes = ["model.storage_dtype=float32", "model.compute_dtype=float32"]
        if model is not None:
            name = str(Path(model).resolve()) if Path(model).is_dir() else model
            shares = ", ".join(repr(share) for share in MODELS[block.model].shares)
            changes += [f"model.name={name}", f"fleet.boundaries=[{shares}]", "adapter.targets=[]"]
        if _length(block) > window:
            changes.append(f"task.max_length={window}")
        if block.base.data.per_client is not None:
            changes.append("~data.per_client")  # an equal share of the data at hand
        adapted.append(replace(block, base=changed(block.base, changes)))
    return tuple(adapted)


def _length(block: Block) -> int:
    """Return the most tokens of a prompt: as stated, or as the task's first prompt has it."""
    task = block.base.task
    return task.max_length or next(iter(BENCHMARKS[task.name].prompts.values())).max_length


def scaled(blocks: Sequence[Block], scale: Scale) -> tuple[Block, ...]:
    """Return the blocks with the rounds, seeds and test examples of a scale."""
    adapted = []
    cells = sum(len(block.arms) for block in blocks) * len(scale.seeds)
    for block in blocks:
        full = block.base.rounds
        changes = [f"rounds={scale.rounds}"]
        if scale.rounds < full:
            changes.append(f"method.optimizer.lr={LEARNING_RATE}")
        if scale.examples:
            changes.append(f"evaluation.examples={scale.examples}")
        arms = tuple(_rescaled(arm, scale.rounds / full) for arm in block.arms)
        base = with_threads(changed(block.base, changes), cells)
        base = base.model_copy(update={"name": f"{base.name}, {SCALED}"})
        adapted.append(replace(block, base=base, arms=arms, seeds=scale.seeds))
    return tuple(adapted)


def _rescaled(arm: Arm, share: float) -> Arm:
    """Return an arm whose own rounds, if it has any, are in proportion to the others'."""
    changes = []
    for item in arm.changes:
        key, _, value = item.partition("=")
        rounds = max(1, round(int(value) * share)) if key == "rounds" else 0
        changes.append(f"rounds={rounds}" if rounds else item)
    return Arm(arm.label, tuple(changes))


def fitted(
    blocks: Sequence[Block],
    paces: Mapping[str, Pace],
    budget: float,
    spent: float,
    at_once: int,
    seeds: tuple[int, ...] | None = None,
) -> Scale:
    """Return the largest scale whose runs end within ``SHARE`` of a budget.

    Args:
        blocks: to be scaled.
        paces: by name of a block.
        budget: seconds in all.
        spent: seconds of it that have gone to the probe.
        at_once: runs at a time.
        seeds: given; otherwise as many of the study's as leave ``ENOUGH_ROUNDS``.

    Raises:
        HoflError: not even ``FEWEST_ROUNDS`` of one seed fit; it names a budget that does.
    """
    offered = seeds or blocks[0].seeds
    least = len(offered) if seeds else 1
    full, seconds = blocks[0].base.rounds, SHARE * budget - spent
    offers = [
        (count, _affordable(blocks, paces, seconds * at_once * EVALUATION_SHARE / count))
        for count in range(len(offered), least - 1, -1)
    ]
    for count, examples in [*offers, (least, EXAMPLES[-1])]:

        def predicted(rounds: int, count: int = count, examples: int = examples) -> float:
            return prediction(blocks, paces, Scale(rounds, offered[:count], examples), at_once)

        rounds = bisect_right(range(1, full + 1), seconds, key=predicted)
        if rounds >= min(ENOUGH_ROUNDS, full) or (count == least and rounds >= FEWEST_ROUNDS):
            return Scale(rounds, offered[:count], examples)
    needed = (predicted(FEWEST_ROUNDS) + spent) / SHARE
    raise HoflError(
        f"the budget is too short for {least * sum(len(b.arms) for b in blocks)} runs of "
        f"{FEWEST_ROUNDS} rounds here: give at least --budget {as_budget(needed)}, fewer "
        "--seeds, or a smaller --model."
    )


def as_budget(seconds: float) -> str:
    """Return a time as ``--budget`` takes it, rounded up.

    >>> as_budget(61), as_budget(2.5 * 3600)
    ('2min', '3h')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes}min" if minutes <= 120 else f"{math.ceil(minutes / 60)}h"


def prediction(
    blocks: Sequence[Block], paces: Mapping[str, Pace], scale: Scale, at_once: int
) -> float:
    """Return the seconds that all runs of a scale take: block after block, seed after seed."""
    total = 0.0
    for block in blocks:
        pace = paces[block.name]
        scored = min(scale.examples or pace.test_examples, pace.test_examples)
        fixed = pace.start + 2 * scored * pace.example
        runs = [
            fixed + scale.rounds * _share(block, arm) * pace.rounds[arm.label] for arm in block.arms
        ]
        total += makespan(runs, at_once)
    return total * len(scale.seeds)


def makespan(runs: Sequence[float], at_once: int) -> float:
    """Return when the last of these runs ends, each started as soon as a place is free.

    >>> makespan([3.0, 3.0, 2.0], 2)
    5.0
    """
    places = [0.0] * at_once
    for run in runs:
        heapreplace(places, places[0] + run)
    return max(places)


def _share(block: Block, arm: Arm) -> float:
    """Return an arm's rounds as a share of the default's."""
    return changed(block.base, arm.changes).rounds / block.base.rounds


def _affordable(blocks: Sequence[Block], paces: Mapping[str, Pace], seconds: float) -> int:
    """Return the most test examples whose evaluations, of one seed, fit the time."""
    for examples in EXAMPLES:
        if sum(_evaluations(block, paces[block.name], examples) for block in blocks) <= seconds:
            return examples
    return EXAMPLES[-1]


def _evaluations(block: Block, pace: Pace, examples: int) -> float:
    """Return the seconds of a seed's evaluations: every arm, at start and end."""
    scored = min(examples or pace.test_examples, pace.test_examples)
    return 2 * len(block.arms) * scored * pace.example


def reductions(paper: Sequence[Block], small: Sequence[Block]) -> list[str]:
    """Return one line for everything in which a smaller version is not the paper's."""
    lines = list(dict.fromkeys(_differences(paper, small)))
    left = [block.name for block in paper if block.name not in {b.name for b in small}]
    if left:
        lines.append(f"left out: {'; '.join(left)}")
    if small[0].seeds != paper[0].seeds:
        lines.append(f"seeds: {list(paper[0].seeds)} -> {list(small[0].seeds)}")
    return lines


def _differences(paper: Sequence[Block], small: Sequence[Block]) -> Iterator[str]:
    by_name = {block.name: block for block in paper}
    for block in small:
        before, after = (dotted(plain_values(b.base)) for b in (by_name[block.name], block))
        for key in dict.fromkeys([*before, *after]):
            if before.get(key) != after.get(key) and key not in ("name", "engine.threads"):
                old = before.get(key, "all" if key == "evaluation.examples" else "unset")
                old = "all" if key == "evaluation.examples" and not old else old
                yield f"{key}: {_shown(old)} -> {_shown(after.get(key, 'unset'))}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
