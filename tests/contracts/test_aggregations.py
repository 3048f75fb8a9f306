"""What every aggregation promises, checked for each entry of ``AGGREGATIONS``.

A new one is tested by being listed, with options in ``support.registries``; what it computes has
an oracle of its own in ``tests/server/test_aggregate.py``.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hofl.algorithm import server_round
from hofl.core.directions import DirectionKey
from hofl.core.layout import SURROGATE, Layout
from hofl.core.optim import SGD
from hofl.messages import RoundPlan
from hofl.rules import BOTTOM_RULES, LocalRule, Part
from hofl.server.aggregate import AGGREGATIONS, Aggregation, aggregation_of
from hofl.server.state import Contribution, NothingKept, ServerState
from support.registries import AGGREGATION_EXAMPLES, check_examples, parts_of, shown
from support.steps import contribution

LAYOUT = Layout(  # with a surrogate's own parameter, and without any in block 1
    names=("head", "a", "b", "a", "a", "a"),
    shapes=((4,), (2, 3), (1,), (5,), (3, 4), (3,)),
    blocks=(SURROGATE, 0, 0, 2, 3, 4),
    num_blocks=5,
)
CLIENTS = 8
"""N; with shares of 1/N every weight that corrects for the sampling is 1."""

each = pytest.mark.parametrize("part", parts_of(AGGREGATION_EXAMPLES), ids=shown)
sizes = pytest.mark.parametrize("cohort", [1, 2, 3, 5, 8])


def plans(cohort: int) -> list[RoundPlan]:
    """Every bottom rule, different boundaries and different q."""
    rng = np.random.default_rng(cohort)
    bottoms = itertools.cycle(BOTTOM_RULES)
    return [
        RoundPlan(
            run="r",
            round=0,
            client=client,
            boundary=int(rng.integers(0, 6)),
            key=DirectionKey(0, 0, client),
            seed=0,
            layout=LAYOUT.digest,
            rule=LocalRule(optimizer=SGD(lr=0.1), bottom=next(bottoms), q=int(rng.integers(1, 5))),
            w=torch.zeros(LAYOUT.size),
        )
        for client in range(cohort)
    ]


def equally_drawn(deltas: Sequence[Tensor]) -> list[Contribution]:
    """Contributions of clients that were all drawn with the same share, but differ otherwise."""
    return [
        contribution(plan, delta, share=1 / CLIENTS, clients=CLIENTS, examples=1 + 3 * plan.client)
        for plan, delta in zip(plans(len(deltas)), deltas, strict=True)
    ]


def updates(cohort: int) -> list[Tensor]:
    """Random updates of very different scales."""
    rng = np.random.default_rng(100 + cohort)
    scales = 10 ** rng.uniform(-3, 3, size=cohort)
    drawn = rng.normal(size=(cohort, LAYOUT.size)) * scales[:, None]
    return list(torch.tensor(drawn, dtype=torch.float32))


def aggregated(part: Part, contributions: Sequence[Contribution]) -> Tensor:
    total: Aggregation = aggregation_of(part, LAYOUT)
    for added in contributions:
        total.add(added)
    return total.result()


def test_every_aggregation_has_examples() -> None:
    check_examples(AGGREGATION_EXAMPLES, AGGREGATIONS, inputs=1)


@each
def test_nothing_added_gives_zero_and_keeps_the_model(part: Part) -> None:
    result = aggregated(part, [])
    assert result.dtype == torch.float64
    assert torch.equal(result, torch.zeros(LAYOUT.size, dtype=torch.float64))
    state = ServerState(updates(1)[0], 4)
    after = server_round(state, [], aggregation_of(part, LAYOUT), NothingKept())
    assert torch.equal(after.w, state.w)
    assert after.round == 5


@each
@sizes
def test_identical_updates_come_out_unchanged(part: Part, cohort: int) -> None:
    delta = updates(1)[0]
    result = aggregated(part, equally_drawn([delta] * cohort))
    assert (result.dtype, result.shape) == (torch.float64, delta.shape)
    torch.testing.assert_close(result, delta.double(), rtol=1e-14, atol=0)


@each
@sizes
def test_every_coordinate_lies_between_the_smallest_and_the_largest_value(
    part: Part, cohort: int
) -> None:
    deltas = updates(cohort)
    result, stacked = aggregated(part, equally_drawn(deltas)), torch.stack(deltas).double()
    room = 1e-14 * stacked.abs().amax(0)
    assert (result >= stacked.amin(0) - room).all()
    assert (result <= stacked.amax(0) + room).all()


@each
@sizes
def test_the_order_of_the_cohort_matters_at_most_at_rounding(part: Part, cohort: int) -> None:
    members = equally_drawn(updates(cohort))
    members = [  # shares that differ, too
        replace(one, share=(1 + k % 3) / 20) for k, one in enumerate(members)
    ]
    expected = aggregated(part, members)
    largest = max(one.delta.abs().max().item() / (CLIENTS * one.share) for one in members)
    rng = np.random.default_rng(cohort)
    orders = [rng.permutation(cohort) for _ in range(6)] if cohort > 3 else []
    for order in orders or itertools.permutations(range(cohort)):
        result = aggregated(part, [members[k] for k in order])
        assert (result - expected).abs().max() <= cohort * 2.3e-16 * max(1.0, largest)


@each
def test_inputs_stay_as_they_are_and_a_result_belongs_to_the_caller(part: Part) -> None:
    members = equally_drawn(updates(5))
    before = [(one.delta.clone(), one.plan.digest(), one.upload.to_bytes()) for one in members]
    total = aggregation_of(part, LAYOUT)
    for added in members:
        total.add(added)
    first = total.result()
    kept = first.clone()
    first.zero_()
    assert torch.equal(total.result(), kept)
    for one, (delta, digest, sent) in zip(members, before, strict=True):
        assert torch.equal(one.delta, delta)
        assert (one.plan.digest(), one.upload.to_bytes()) == (digest, sent)


@each
def test_two_rounds_share_nothing(part: Part) -> None:
    """A round is aggregated by itself: the one before it leaves nothing behind."""
    alone = aggregated(part, equally_drawn(updates(3)))
    aggregated(part, equally_drawn(updates(8)))
    assert torch.equal(aggregated(part, equally_drawn(updates(3))), alone)
