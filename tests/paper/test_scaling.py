"""Smaller versions of the paper's studies: they fit their time, and say what they leave out."""

import re
from dataclasses import replace

import pytest

from hofl.cli.options import seconds_of
from hofl.core.errors import HoflError
from hofl.paper.scaling import (
    ENOUGH_ROUNDS,
    SHARE,
    Pace,
    Scale,
    fitted,
    prediction,
    reductions,
    scaled,
    substituted,
)
from hofl.paper.studies import STUDIES, Block

STUDY = {name: study.blocks() for name, study in STUDIES.items()}


def paces(blocks: tuple[Block, ...], start: float, step: float, example: float) -> dict[str, Pace]:
    """Paces of machines on which an arm's round takes longer than that of the arm before it."""
    return {
        block.name: Pace(
            start,
            {arm.label: step * (1 + number) for number, arm in enumerate(block.arms)},
            example,
            test_examples=872,
        )
        for block in blocks
    }


def seconds(blocks: tuple[Block, ...], found: dict[str, Pace], scale: Scale) -> float:
    """The sum over every single run of a scaled study, by its own configuration."""
    total = 0.0
    for block in scaled(blocks, scale):
        pace = found[block.name]
        scored = min(block.base.evaluation.examples or pace.test_examples, pace.test_examples)
        for label, config in block.configs().items():
            run = pace.start + config.rounds * pace.rounds[label] + 2 * scored * pace.example
            total += len(block.seeds) * run
    return total


@pytest.mark.parametrize("name", ["language-tasks", "beta-alpha", "iid-beta", "squad"])
@pytest.mark.parametrize("budget", [1800.0, 7200.0, 86400.0])
def test_a_scale_fills_its_time_and_one_more_round_would_not_fit(name: str, budget: float) -> None:
    blocks = STUDY[name]
    found = paces(blocks, start=5.0, step=0.2, example=0.005)
    scale = fitted(blocks, found, budget / SHARE, 0.0, 1)
    assert seconds(blocks, found, scale) <= budget
    more = replace(scale, rounds=scale.rounds + 1)
    assert scale.rounds == 160 or seconds(blocks, found, more) > budget
    if len(scale.seeds) < len(blocks[0].seeds):
        fewer = replace(scale, seeds=blocks[0].seeds, rounds=ENOUGH_ROUNDS)
        assert seconds(blocks, found, fewer) > budget, "a seed was given up for rounds"


@pytest.mark.parametrize(("runs", "ends"), [([4.0, 1.0, 1.0, 1.0], 4.0), ([1.0, 1.0, 4.0], 5.0)])
def test_two_at_a_time_end_when_the_last_of_a_block_does(runs: list[float], ends: float) -> None:
    """The next block waits for it: an idle place is time that is spent, too."""
    blocks = tuple(replace(b, arms=b.arms[: len(runs)]) for b in STUDY["iid-beta"][:2])
    found = {
        block.name: Pace(0.0, dict(zip([a.label for a in block.arms], runs, strict=True)), 0.0, 1)
        for block in blocks
    }
    assert prediction(blocks, found, Scale(10, (1, 2, 3)), 2) == 10 * 3 * 2 * ends


def test_evaluation_is_shortened_before_it_takes_over() -> None:
    blocks = STUDY["iid-beta"]
    quick = fitted(blocks, paces(blocks, 1.0, 0.1, 1e-5), 3600.0, 0.0, 1)
    slow = fitted(blocks, paces(blocks, 1.0, 0.1, 0.05), 3600.0, 0.0, 1)
    assert quick.examples == 0
    assert 0 < slow.examples < 872


@pytest.mark.parametrize("example", [0.0001, 0.01, 0.5])
@pytest.mark.parametrize("spent", [0.0, 45.0, 3000.0])
def test_a_budget_that_fits_nothing_is_refused_with_one_that_does(
    spent: float, example: float
) -> None:
    """The probe's time is part of the named budget, the least one in whole minutes or hours."""
    blocks = STUDY["language-tasks"]
    found = paces(blocks, start=30.0, step=1.0, example=example)
    with pytest.raises(HoflError, match=r"too short for 60 runs of 2 rounds here") as refused:
        fitted(blocks, found, spent + 60.0, spent, 2)
    named = re.search(r"--budget (\d+(min|h)),", str(refused.value))
    assert named is not None
    enough, unit = seconds_of("--budget", named[1]), {"min": 60.0, "h": 3600.0}[named[2]]
    assert fitted(blocks, found, enough, spent, 2).rounds >= 2
    with pytest.raises(HoflError, match="too short"):
        fitted(blocks, found, enough - unit, spent, 2)


def test_rounds_of_the_ablations_keep_their_proportions() -> None:
    (block,) = scaled(STUDY["ablations"], Scale(20, (42,), 100))
    rounds = {label: config.rounds for label, config in block.configs().items()}
    assert (rounds["default"], rounds["E = 1"], rounds["E = 10"]) == (20, 100, 10)
    assert block.base.name == "OPT-125M, SST-2, scaled", "reports show the name"
    optimizers = [config.method.optimizer for config in block.configs().values()]
    assert all(isinstance(one, dict) and one["lr"] == 1e-3 for one in optimizers)


def test_the_papers_own_length_keeps_its_learning_rate() -> None:
    (block,) = scaled(STUDY["ablations"], Scale(160, (42, 43, 44)))
    assert block.base.method == STUDY["ablations"][0].base.method


def test_another_model_is_cut_at_the_same_shares_and_every_change_is_listed() -> None:
    paper = STUDY["beta-alpha"]
    small = scaled(substituted(paper, "some/model", 4096), Scale(12, (42, 43), 200))
    shares = small[0].base.fleet.boundaries
    assert [int(28 * share) for share in shares] == [8, 16, 24]
    assert [int(6 * share) for share in shares] == [1, 3, 5]
    lines = reductions(paper, small)
    for part in (
        "rounds: 160 -> 12",
        "model.name: Qwen/Qwen2.5-1.5B -> some/model",
        "model.compute_dtype: bfloat16 -> float32",
        "method.optimizer.lr: 1e-05 -> 0.001",
        "evaluation.examples: all -> 200",
        "seeds: [42, 43, 44] -> [42, 43]",
        "data.per_client: 4000 -> unset",
    ):
        assert part in lines


def test_a_model_in_place_of_three_leaves_two_out_and_says_so() -> None:
    paper = STUDY["language-tasks"]
    small = substituted(paper, "some/model", 4096)
    assert [block.name for block in small] == [b.name for b in paper if b.model == "OPT-125M"]
    (left,) = [line for line in reductions(paper, small) if line.startswith("left out")]
    assert left.count("Qwen2.5-1.5B") == left.count("SmolLM3-3B") == 4


def test_texts_are_cut_to_the_window_of_a_small_model() -> None:
    lengths = {
        window: [b.base.task.max_length for b in substituted(blocks, "some/model", window)]
        for window in (256, 2048)
        for blocks in (STUDY["squad"],)
    }
    assert lengths == {256: [256], 2048: [512]}
    short = substituted(STUDY["language-tasks"], "some/model", 100)
    assert {b.base.task.max_length for b in short} == {100}
