"""HiSo: directions scaled by a curvature that the server learns, in pure ZO and under HO-FL."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.core.directions import HESSIAN, Gaussian
from hofl.core.layout import Layout
from hofl.experiment.checkpoint import load_state, save_state
from hofl.experiment.runs import RunDirectory
from hofl.methods import METHODS, method
from hofl.rules import Part
from hofl.server.curvature import LARGEST
from hofl.server.state import keeper_of
from support.family import draws, key_at, loss_in, one_round, quickly, slow_hiso, start_of
from support.models import tiny
from support.steps import contribution, plan_for


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_three_rounds_are_those_of_the_algorithm_written_out(family: str) -> None:
    model = tiny(family)
    chosen = METHODS["hiso"].local.directions.changed({"nu": 0.5})
    hiso = quickly(method("hiso", directions=chosen.spec()))
    state = start_of(hiso, model)
    start = w = state.w.double()
    hessian = torch.ones_like(w)
    for t in range(3):
        state, _ = one_round(hiso, model, state, [0, 1])
        losses = [[loss_in(model, client, t, step) for step in range(2)] for client in (0, 1)]
        u = draws(model, key_at(t, None))
        w, hessian = slow_hiso(w, hessian, losses, u, lr=0.05, mu=1e-2, nu=0.5)
        far = (state.w - w).norm() / (w - start).norm()
        assert far < 0.01
        assert torch.allclose(state.vectors[HESSIAN].double(), hessian, rtol=0.02, atol=1e-6)
    assert (hessian.max() / hessian.min()) > 1.05, "the directions must have been scaled"


def test_the_square_is_that_of_the_mean_and_not_the_mean_of_squares() -> None:
    """Opposite scalars of two clients cancel before they are squared."""
    model = tiny("llama")
    plan = plan_for(model, 4, METHODS["hiso"].local, key=key_at(0, None))
    for other, moved in ((-1.0, False), (1.0, True)):
        keeper = keeper_of(plan.rule.directions, model.layout)
        for sign in (1.0, other):
            added = contribution(plan, torch.zeros(model.layout.size))
            sent = replace(added.upload, scalars=torch.full((1, 5), sign))
            keeper.add(replace(added, upload=sent))
        found = keeper.result(plan.vectors)[HESSIAN]
        quiet = torch.full_like(found, 0.95 + 0.05e-8)
        assert torch.allclose(found, quiet) != moved


def test_a_block_that_nobody_probed_keeps_its_curvature() -> None:
    """Under HO-FL the bottoms differ: a mean is over those who have the block in theirs."""
    model = tiny("llama")
    rule = replace(METHODS["hofl"].local, directions=Part("curved"), local_steps=1)
    keeper = keeper_of(rule.directions, model.layout)
    estimates = {}
    for client, boundary in ((0, 1), (1, 3)):
        plan = plan_for(model, boundary, rule, client=client)
        added = contribution(plan, torch.zeros(model.layout.size))
        scalars = torch.tensor([[0.5 + client, -2.0]])
        keeper.add(replace(added, upload=replace(added.upload, scalars=scalars)))
        g = np.zeros(model.layout.cut(boundary), np.float32)
        Gaussian(plan.key, model.layout).combine(scalars[0].numpy(), 0, boundary, g)
        estimates[client] = torch.from_numpy(g)
    found = keeper.result(plan.vectors)[HESSIAN]
    first, second = model.layout.cut(1), model.layout.cut(3)
    both = (estimates[0] + estimates[1][:first]) / 2
    assert torch.allclose(found[:first], 0.95 + 0.05 * both**2)
    assert torch.allclose(found[first:second], 0.95 + 0.05 * estimates[1][first:] ** 2)
    assert torch.equal(found[second:], torch.ones(model.layout.size - second))


def test_a_wild_upload_leaves_a_usable_curvature() -> None:
    model = tiny("llama")
    plan = plan_for(model, 4, METHODS["hiso"].local)
    keeper = keeper_of(plan.rule.directions, model.layout)
    added = contribution(plan, torch.zeros(model.layout.size))
    keeper.add(replace(added, upload=replace(added.upload, scalars=torch.full((1, 5), 1e38))))
    found = keeper.result(plan.vectors)[HESSIAN]
    assert torch.isfinite(found).all()
    assert found.max() == pytest.approx(LARGEST)
    replace(plan, vectors={HESSIAN: found}).directions(model.layout)


@pytest.mark.parametrize(("name", "plain"), [("hiso", "decomfl-sgd"), ("hofl", "hofl")])
def test_without_learning_it_is_the_plain_method_bit_for_bit(name: str, plain: str) -> None:
    """H = 1: HiSo is DeComFL, and HO-FL with curved directions HO-FL."""
    ends = {}
    for key, nu in {"plain": None, "curved": 0.0, "learning": 0.05}.items():
        shared = METHODS[name].local.shares_directions
        options = {} if nu is None else {"name": "curved", "nu": nu, "shared": shared}
        chosen = quickly(method(plain if nu is None else name, q=5, directions=options))
        model = tiny("llama")
        state = start_of(chosen, model)
        for _ in range(3):
            state, _ = one_round(chosen, model, state, [0, 1])
        ends[key] = state.w
    assert torch.equal(ends["curved"], ends["plain"])
    assert not torch.equal(ends["learning"], ends["plain"])


def test_the_curvature_is_in_checkpoint_and_replay_hash(tmp_path: Path) -> None:
    """A resumed run is shown in ``tests/plugins/test_a_direction_rule.py``."""
    model, hiso = tiny("llama"), quickly(METHODS["hiso"])
    state, _ = one_round(hiso, model, start_of(hiso, model), [0, 1])
    run = RunDirectory(tmp_path)
    save_state(run, state, model.layout.digest)
    assert torch.equal(load_state(run).vectors[HESSIAN], state.vectors[HESSIAN])
    assert (state.vectors[HESSIAN] != 1).all()
    plan = plan_for(model, 4, hiso.local)
    other = {HESSIAN: plan.vectors[HESSIAN].clone().index_fill_(0, torch.tensor(7), 1.5)}
    assert replace(plan, vectors=other).digest() != plan.digest()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"nu": 1.0}, "nu must lie in"),
        ({"nu": float("nan")}, "nu must lie in"),
        ({"nu": "fast"}, "nu must lie in"),
        ({"eps": 0.0}, "eps must lie in"),
        ({"rate": 1}, "has no option 'rate'"),
    ],
)
def test_options_that_make_no_sense_are_one_line(options: dict, reason: str) -> None:
    with pytest.raises(hofl.HoflError, match=reason):
        keeper_of(Part.of({"name": "curved", **options}), Layout((), (), (), 1))


@pytest.mark.parametrize("vectors", [{}, {HESSIAN: torch.ones(3)}, {HESSIAN: torch.zeros(896)}])
def test_a_plan_without_a_usable_curvature_is_refused(vectors: dict) -> None:
    model = tiny("llama")
    plan = plan_for(model, 4, METHODS["hiso"].local, vectors=vectors)
    with pytest.raises(hofl.HoflError, match="need H > 0"):
        plan.directions(model.layout)


def test_on_a_quadratic_of_condition_number_100_it_needs_fewer_rounds() -> None:
    """Each at its best of two step sizes; ``docs/log.md`` has the whole table."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from quadratic import best

    rates = [1.0, 1.78]
    decomfl, hiso = (best(0.01, 10, 20, nu, rates, seeds=1)[0] for nu in (0.0, 0.05))
    assert hiso < 0.8 * decomfl
