"""What every direction rule promises, checked for each entry of ``DIRECTIONS``.

Client and server agree bit for bit only if directions and their combination are functions of the
plan alone. A new rule is tested by being listed, with options in ``support.registries``; if the
server keeps vectors for it, it is tried with those of the first rounds.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hofl.core.directions import DirectionKey, Directions
from hofl.core.layout import SURROGATE, Coordinate, Layout
from hofl.core.optim import SGD
from hofl.core.secret import COHORT, RunSecret
from hofl.messages import RoundPlan
from hofl.rules import DIRECTIONS, LocalRule, Part
from hofl.server.state import keeper_of
from support.registries import DIRECTION_EXAMPLES, check_examples, parts_of, shown
from support.steps import contribution

LAYOUT = Layout(
    names=("head", "a", "b", "a", "b", "a"),
    shapes=((5, 3), (3, 5), (1,), (17,), (15,), (4, 65)),
    blocks=(SURROGATE, 0, 0, 1, 1, 3),
    num_blocks=4,
)
SCALARS = np.array([0.3, -1.7e-3, 12.1, -0.0, 1e-30], dtype=np.float32)

each = pytest.mark.parametrize("part", parts_of(DIRECTION_EXAMPLES), ids=shown)


def plan_of(part: Part, **changes: object) -> RoundPlan:
    """A plan with the vectors that the server keeps for the rule after a round."""
    rule = LocalRule(optimizer=SGD(lr=0.1), directions=part, q=2)
    rng = torch.Generator().manual_seed(1)
    plan = RoundPlan(
        run="r",
        round=3,
        client=4,
        boundary=2,
        key=DirectionKey(5, 3, 4),
        seed=5,
        layout=LAYOUT.digest,
        rule=rule,
        w=torch.randn(LAYOUT.size, generator=rng),
        vectors=keeper_of(part, LAYOUT).start(),
    )
    return replace(plan, vectors=after_a_round(part, plan), **changes)


def after_a_round(part: Part, plan: RoundPlan) -> Mapping[str, Tensor]:
    """What the keeper makes of a contribution with scalars."""
    keeper = keeper_of(part, LAYOUT)
    added = contribution(plan, torch.full((LAYOUT.size,), 0.01))
    scalars = torch.tensor([[0.5, -2.0]] * plan.rule.local_steps)
    keeper.add(replace(added, upload=replace(added.upload, scalars=scalars)))
    return keeper.result(plan.vectors)


def bits(directions: Directions, step: int, j: int, coordinate: Coordinate) -> bytes:
    return directions.direction(step, j, coordinate).tobytes()


def all_bits(directions: Directions) -> list[bytes]:
    """Every coordinate's direction for a few steps and j."""
    places = [(step, j, c) for step in (0, 1, 7) for j in range(3) for c in LAYOUT.coordinates]
    return [bits(directions, *place) for place in places]


def test_every_direction_rule_has_examples() -> None:
    makers = {name: traits.make for name, traits in DIRECTIONS.items()}
    check_examples(DIRECTION_EXAMPLES, makers, inputs=3)


@each
def test_a_direction_is_float32_of_the_parameters_size_in_new_memory(part: Part) -> None:
    """Whatever is done to a result, to another instance or in another order, the next is right."""
    directions = plan_of(part).directions(LAYOUT)
    expected = all_bits(directions)
    for c in LAYOUT.coordinates:
        first = directions.direction(1, 0, c)
        assert (first.dtype, first.shape) == (np.float32, (c.size,))
        assert np.isfinite(first).all()
        second = directions.direction(1, 0, c)
        assert not np.shares_memory(first, second)
        first *= 0
        assert second.any()
        assert np.array_equal(directions.direction(1, 0, c), second)
    assert all_bits(directions) == expected
    assert all_bits(plan_of(part).directions(LAYOUT)) == expected


@each
def test_directions_are_the_same_behind_the_wire(part: Part) -> None:
    plan = plan_of(part)
    received = RoundPlan.from_bytes(plan.to_bytes())
    assert all_bits(received.directions(LAYOUT)) == all_bits(plan.directions(LAYOUT))
    outs = [np.full(LAYOUT.cut(2), np.nan, np.float32) for _ in range(2)]
    for out, side in zip(outs, (plan, received), strict=True):
        side.directions(LAYOUT).combine(SCALARS, 1, 2, out)
    assert outs[0].tobytes() == outs[1].tobytes()


@each
def test_every_step_direction_and_parameter_is_drawn_afresh(part: Part) -> None:
    directions = plan_of(part).directions(LAYOUT)
    long = [c for c in LAYOUT.coordinates if c.size > 8]
    drawn = [bits(directions, s, j, c)[:32] for s in range(4) for j in range(4) for c in long]
    assert len(set(drawn)) == len(drawn)


def key_of(part: Part, seed: int, t: int, client: int) -> DirectionKey:
    """The key that the server of a run with this seed gives to a client."""
    shared = LocalRule(optimizer=SGD(lr=0.1), directions=part).shares_directions
    return RunSecret.from_seed(seed).directions(t, COHORT if shared else client)


@each
def test_every_run_round_and_client_has_directions_of_its_own_unless_they_are_shared(
    part: Part,
) -> None:
    here = all_bits(plan_of(part, key=key_of(part, 5, 3, 4)).directions(LAYOUT))
    for seed, t, client in ((6, 3, 4), (5, 4, 4), (5, 3, 5)):
        there = all_bits(plan_of(part, key=key_of(part, seed, t, client)).directions(LAYOUT))
        if client == 5 and dict(part.options).get("shared"):
            assert there == here
        else:
            assert not set(here) & set(there)
    boundary = all_bits(plan_of(part, key=key_of(part, 5, 3, 4), boundary=3).directions(LAYOUT))
    assert boundary == here, "a raised boundary must not change what lies below"


@each
@pytest.mark.parametrize("q", [1, 2, 5])
@pytest.mark.parametrize("boundary", range(5))
def test_combine_is_the_sum_written_out_with_one_rounding_per_operation(
    part: Part, q: int, boundary: int
) -> None:
    """In float64 a product of two float32 is exact, and a sum rounds to float32 as if it were."""

    def rounded(values: np.ndarray | float) -> np.ndarray:
        return np.asarray(values).astype(np.float32).astype(np.float64)

    directions, scalars = plan_of(part).directions(LAYOUT), SCALARS[:q].copy()
    pieces = []
    for c in LAYOUT.coordinates[: sum(c.stop <= LAYOUT.cut(boundary) for c in LAYOUT.coordinates)]:
        u = [directions.direction(2, j, c).astype(np.float64) for j in range(q)]
        total = rounded(u[0] * np.float64(scalars[0]))
        for j in range(1, q):
            total = rounded(total + rounded(u[j] * np.float64(scalars[j])))
        pieces.append(rounded(total * rounded(directions.factor / q)))
    expected = np.concatenate(pieces).astype(np.float32)
    out = np.full(LAYOUT.cut(boundary), np.nan, dtype=np.float32)
    assert directions.combine(scalars, 2, boundary, out) is out
    assert out.tobytes() == expected.tobytes()
    assert np.array_equal(scalars, SCALARS[:q])
    as_list = directions.combine(scalars.tolist(), 2, boundary, np.empty_like(out))
    assert as_list.tobytes() == out.tobytes()


@each
def test_what_the_server_keeps_is_float32_and_keeps_its_names(part: Part) -> None:
    start, later = keeper_of(part, LAYOUT).start(), plan_of(part).vectors
    assert start.keys() == later.keys()
    assert (not start) == (DIRECTIONS[part.name].keep is None)
    for vector in (*start.values(), *later.values()):
        assert vector.dtype == torch.float32
        assert torch.isfinite(vector).all()
    again = plan_of(part).vectors
    assert all(torch.equal(again[name], vector) for name, vector in later.items())


@each
def test_drawing_and_combining_leave_the_plan_as_it_is(part: Part) -> None:
    plan = plan_of(part)
    before = plan.digest()
    all_bits(plan.directions(LAYOUT))
    plan.directions(LAYOUT).combine(SCALARS, 0, 4, np.empty(LAYOUT.size, np.float32))
    assert plan.digest() == before
