"""Streaming aggregation: against a loop over blocks and clients, and its memory."""

import gc
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from hofl.algorithm import server_round
from hofl.core.directions import DirectionKey
from hofl.core.layout import Layout
from hofl.core.optim import SGD
from hofl.messages import RoundPlan
from hofl.rules import LocalRule, Part
from hofl.sampling.depround import depround
from hofl.server import aggregate
from hofl.server.aggregate import AGGREGATIONS, aggregation_of
from hofl.server.state import NothingKept, ServerState
from support.steps import averaged, contribution

SIZES = [7, 0, 5, 12, 3]  # parameters per block; block 1 has none
LAYOUT = Layout(
    names=("a", "b", "a", "a", "a"),
    shapes=((2, 3), (1,), (5,), (3, 4), (3,)),
    blocks=(0, 0, 2, 3, 4),
    num_blocks=5,
)
PLAN = RoundPlan(
    run="r",
    round=0,
    client=0,
    boundary=0,
    key=DirectionKey(0, 0, 0),
    seed=0,
    layout=LAYOUT.digest,
    rule=LocalRule(optimizer=SGD(lr=0.1)),
    w=torch.zeros(LAYOUT.size),
)
Cohort = list[tuple[RoundPlan, Tensor]]


def cohort(seed: int, clients: int, bottoms: tuple[str, ...] = ("zeroth-order",)) -> Cohort:
    """Random boundaries and updates of very different scales."""
    rng = np.random.default_rng(seed)
    members = []
    for client in range(clients):
        rule = replace(PLAN.rule, bottom=str(rng.choice(bottoms)), q=int(rng.integers(1, 5)))
        plan = replace(PLAN, client=client, boundary=int(rng.integers(0, 6)), rule=rule)
        delta = rng.normal(size=LAYOUT.size) * 10 ** rng.uniform(-3, 3)
        members.append((plan, torch.tensor(delta, dtype=torch.float32)))
    return members


def exact(plan: RoundPlan, block: int) -> bool:
    """Whether the client had this block's true gradient."""
    return block >= plan.boundary or plan.rule.bottom.name == "recompute"


def weight(rule: str, plan: RoundPlan, block: int, members: Cohort) -> float:
    if rule == "exact-first":
        somebody = any(exact(other, block) for other, _ in members)
        return 1.0 if exact(plan, block) or not somebody else 0.0
    if rule == "by-precision" and block < plan.boundary and plan.rule.bottom.name == "zeroth-order":
        return plan.rule.q / (plan.rule.q + sum(SIZES[: plan.boundary]) + 1)
    return 1.0


def brute_force(rule: str, members: Cohort) -> list[float]:
    """Every coordinate by itself, exactly summed."""
    result = []
    blocks = [block for block, size in enumerate(SIZES) for _ in range(size)]
    for i, block in enumerate(blocks):
        weights = [weight(rule, plan, block, members) for plan, _ in members]
        terms = [w * delta[i].item() for w, (_, delta) in zip(weights, members, strict=True)]
        result.append(math.fsum(terms) / math.fsum(weights))
    return result


def streamed(rule: str, members: Cohort) -> Tensor:
    total = aggregation_of(Part(rule), LAYOUT)
    for plan, delta in members:
        total.add(contribution(plan, delta))
    return total.result()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rule", ["mean", "exact-first", "by-precision"])
@pytest.mark.parametrize(
    "bottoms", [("zeroth-order",), ("zeroth-order", "recompute", "frozen")], ids=["zo", "mixed"]
)
def test_streamed_mean_is_the_brute_force_mean(rule: str, seed: int, bottoms: tuple[str, ...]):
    members = cohort(seed, 1 + seed * 2, bottoms)
    result = streamed(rule, members)
    assert result.dtype == torch.float64
    # float64 rounding of a sum of at most 15 terms, relative to its largest term
    largest = max(delta.abs().max().item() for _, delta in members)
    np.testing.assert_allclose(result, brute_force(rule, members), rtol=0, atol=1e-14 * largest)


def test_every_rule_is_tested_here():
    means, robust = {"mean", "exact-first", "by-precision"}, {"median", "trimmed-mean"}
    elsewhere = {"mean-of-scalars", "from-start"}  # tests/test_catchup.py, tests/test_fedkseed.py
    assert set(AGGREGATIONS) == means | robust | {"by-examples", "unbiased"} | elsewhere


def test_by_examples_is_fedavgs_weighting():
    members = cohort(7, 6)
    sizes = [3, 1, 40, 7, 12, 5]
    total = aggregation_of(Part("by-examples"), LAYOUT)
    for size, (plan, delta) in zip(sizes, members, strict=True):
        total.add(contribution(plan, delta, examples=size))
    stacked = np.stack([delta.double().numpy() for _, delta in members])
    expected = np.average(stacked, axis=0, weights=sizes)
    np.testing.assert_allclose(total.result(), expected, rtol=1e-12)


def test_the_unbiased_mean_has_the_whole_fleets_mean_as_its_expectation():
    """Oracle: all cohorts of K = 2 out of N = 5 with their probabilities under DepRound."""
    rng = np.random.default_rng(3)
    deltas = rng.normal(size=(5, LAYOUT.size)).astype(np.float32)
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.1])
    expectation, draws = np.zeros(LAYOUT.size), 40_000
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        drawn = tuple(depround(2 * p, rng).tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    for drawn, count in counts.items():
        total = aggregation_of(Part("unbiased"), LAYOUT)
        for i in drawn:
            delta = torch.from_numpy(deltas[i])
            total.add(contribution(PLAN, delta, share=float(p[i]), clients=5))
        expectation += total.result().numpy() * count / draws
    error = 5 * np.abs(deltas).max() / (5 * p.min()) / np.sqrt(draws)
    np.testing.assert_allclose(expectation, deltas.mean(0), atol=error)
    assert np.abs(p @ deltas - deltas.mean(0)).max() > 3 * error, "the plain mean is biased"


@pytest.mark.parametrize("clients", range(1, 14))
def test_robust_rules_are_those_of_numpy_and_scipy(clients: int, monkeypatch: pytest.MonkeyPatch):
    """In chunks that do not divide the vector, with ties, and in any order."""
    monkeypatch.setattr(aggregate, "CHUNK", 5)
    members = cohort(clients, clients)
    members = [(plan, (8 * delta).round() / 8) for plan, delta in members]
    stacked = np.stack([delta.double().numpy() for _, delta in members])
    median, trimmed = streamed("median", members), streamed("trimmed-mean", members)
    np.testing.assert_array_equal(median, np.median(stacked, axis=0))
    # scipy rounds the number of values down: a share that makes it ours
    left_out = min(math.ceil(clients / 5), (clients - 1) // 2)
    share = (left_out + 1e-9) / clients
    np.testing.assert_allclose(trimmed, scipy.stats.trim_mean(stacked, share), rtol=1e-13)
    for rule, result in (("median", median), ("trimmed-mean", trimmed)):
        assert torch.equal(streamed(rule, members[::-1]), result)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("attack", [1e3, -1.0, -1e6, float(torch.finfo().max)])
def test_robust_rules_stay_within_the_honest_values(rule: str, attack: float):
    """Whatever as many as are left out at an end send; the mean has no such bound."""
    rng = torch.Generator().manual_seed(8)
    honest = [(plan, torch.randn(LAYOUT.size, generator=rng)) for plan, _ in cohort(1, 8)]
    bad = [(PLAN, torch.full((LAYOUT.size,), attack))] * 2
    low = torch.stack([delta for _, delta in honest]).amin(0)
    high = torch.stack([delta for _, delta in honest]).amax(0)
    result = streamed(rule, [*bad, *honest])
    assert (low <= result).all()
    assert (result <= high).all()
    mean = streamed("mean", [*bad, *honest])
    assert abs(attack) < 10 or not ((low <= mean) & (mean <= high)).any()


def test_exact_updates_replace_noisy_ones_whoever_comes_first():
    noisy = replace(PLAN, boundary=5), torch.full((LAYOUT.size,), 100.0)
    exact_top = replace(PLAN, boundary=3), torch.ones(LAYOUT.size)
    expected = [50.5] * 12 + [1.0] * 15  # blocks 0-2 nobody has exactly, blocks 3 and 4 one client
    for order in itertools.permutations([noisy, exact_top]):
        assert streamed("exact-first", list(order)).tolist() == expected


def test_round_adds_the_mean_and_rounds_to_float32_once():
    members = cohort(5, 9)
    w = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(1))
    total = np.array(brute_force("mean", members)) + w.double().numpy()
    result = averaged(w, members, LAYOUT)
    assert result.dtype == torch.float32
    np.testing.assert_array_equal(result, total.astype(np.float32))


def live_bytes() -> int:
    """Bytes of all storages that some tensor of this process still holds."""
    tensors = [o for o in gc.get_objects() if type(o) is Tensor]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("rule", ["mean", "exact-first", "by-precision"])
def test_memory_does_not_grow_with_the_cohort(rule: str):
    size = 50_000
    layout = Layout(names=("a", "a"), shapes=((size,), (size,)), blocks=(0, 1), num_blocks=2)
    w = torch.zeros(layout.size)
    seen: list[int] = []

    def updates(clients: int) -> Iterator[tuple[RoundPlan, Tensor]]:
        for client in range(clients):
            if client in (2, clients - 1):
                gc.collect()
                seen.append(live_bytes())
            yield replace(PLAN, boundary=client % 3, w=w), torch.full((layout.size,), 1.0)

    gc.collect()
    before = live_bytes()
    for clients in (10, 200):
        total = aggregation_of(Part(rule), layout)
        added = (contribution(plan, delta) for plan, delta in updates(clients))
        result = server_round(ServerState(w, 0), added, total, NothingKept()).w
        assert torch.equal(result, torch.ones(layout.size))
        del result
    assert max(seen) - before <= 4 * 4 * layout.size  # a float64 sum and one or two float32 updates
    assert seen[2:] == seen[:2], "K = 200 holds what K = 10 holds"
    assert seen[1] == seen[0], "the last update meets what the third one met"
