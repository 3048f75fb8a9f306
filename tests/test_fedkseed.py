"""FedKSeed: candidates from a finite pool, w from w_0 and one sum of scalars per candidate."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.catchup import HeldModels, HeldStart, held_by
from hofl.core.directions import TOTALS, Candidates, DirectionKey
from hofl.core.errors import PlanRefused
from hofl.engines.local import InProcess
from hofl.experiment.attempt import History
from hofl.experiment.build import build_simulation
from hofl.experiment.method import build_method
from hofl.experiment.rounds import one_round as run_round
from hofl.methods import METHODS, Method, method
from hofl.models.split import SplitModel
from hofl.server.candidates import rebuilt
from support.family import key_at, loss_in, one_round, quickly, slow_fedkseed, start_of
from support.models import tiny
from support.runs import adapter_bytes, quick
from support.steps import plan_for

POOL = 7


def few(**options: object) -> Method:
    """FedKSeed with so few candidates that every one is drawn again and again."""
    return quickly(method("fedkseed", directions={"pool": POOL}, **options), steps=4)


def chosen_by(model: SplitModel, round_number: int, client: int) -> list[int]:
    rule = Candidates(key_at(round_number, client), model.layout, pool=POOL)
    return [rule.chosen(step, 0) for step in range(4)]


def pool_of(model: SplitModel) -> torch.Tensor:
    """All candidates, float64 [pool, d]."""
    rule = Candidates(DirectionKey(0, 0, 0), model.layout, pool=POOL)
    rows = [
        np.concatenate([rule.candidate(c, each) for each in model.layout.coordinates])
        for c in range(POOL)
    ]
    return torch.tensor(np.stack(rows)).double()


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_three_rounds_are_those_of_the_algorithm_written_out(family: str) -> None:
    model, chosen = tiny(family), few()
    state = start_of(chosen, model)
    w_0, start, z = state.w, state.w.double(), pool_of(model)
    totals = torch.zeros(POOL, dtype=torch.float64)
    for t in range(3):
        state, added = one_round(chosen, model, state, [0, 1], w_0)
        assert all(each.upload.scalars.shape == (4, 1) for each in added)
        clients = [
            ([loss_in(model, i, t, step) for step in range(4)], chosen_by(model, t, i))
            for i in (0, 1)
        ]
        w, totals = slow_fedkseed(start, totals, clients, z, lr=0.05, eps=1e-2)
        assert (state.w - w).norm() < 0.01 * (w - start).norm()
        assert torch.allclose(state.vectors[TOTALS].double(), totals, rtol=0.02, atol=1e-3)
    assert (totals != 0).sum() > 4, "candidates must have been drawn twice"


def test_every_scalar_is_added_once_to_the_candidate_it_was_measured_along() -> None:
    """The means of the clients' own ends are where the totals lead, but for rounding."""
    model, chosen = tiny("llama"), few(q=3)
    start = start_of(chosen, model)
    state, added = one_round(chosen, model, start, [0, 1, 2], start.w)
    mean = torch.stack([each.delta.double() for each in added]).mean(0)
    moved = state.w.double() - start.w.double()
    assert (moved - mean).abs().max() < 1e-6 < 0.01 * mean.abs().max()
    sent = sum(each.upload.scalars.double().sum() for each in added) / 3 / 3
    assert state.vectors[TOTALS].double().sum() == pytest.approx(sent.item(), rel=1e-5)


def test_the_same_bits_follow_from_the_start_in_every_round() -> None:
    """And not those of a run that adds updates up: rounding differs, by some last places."""
    model, chosen = tiny("llama"), few()
    start = start_of(chosen, model)
    other = replace(chosen, aggregation=METHODS["mezo"].aggregation)
    state, summed = start, start
    for _ in range(4):
        state, _ = one_round(chosen, model, state, [0, 1], start.w)
        summed, _ = one_round(other, model, summed, [0, 1])
        plan = plan_for(model, 4, chosen.local, w=state.w, vectors=state.vectors)
        assert torch.equal(rebuilt(plan, state.vectors[TOTALS], start.w, model.layout), state.w)
    assert not torch.equal(summed.w, state.w)
    assert (summed.w - state.w).norm() < 0.01 * (state.w - start.w).norm()


def test_candidates_are_drawn_uniformly_and_by_every_participation_anew() -> None:
    layout = tiny("llama").layout
    rule = Candidates(DirectionKey(1, 2, 3), layout, pool=8)
    drawn = np.array([rule.chosen(step, j) for step in range(500) for j in range(8)])
    counts = np.bincount(drawn, minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 24.3, "chi-square, 7 degrees of freedom, 0.1 %"
    again = Candidates(DirectionKey(1, 2, 4), layout, pool=8)
    same = np.mean([rule.chosen(step, 0) == again.chosen(step, 0) for step in range(500)])
    assert 0.05 < same < 0.25
    c = layout.coordinates[0]
    at = {int(n): int(k) for k, n in enumerate(drawn[::8])}
    for number, step in at.items():
        assert np.array_equal(rule.direction(step, 0, c), again.candidate(number, c))
    other = Candidates(DirectionKey(1, 2, 3), layout, pool=8, seed=5)
    assert not np.array_equal(rule.candidate(0, c), other.candidate(0, c))


def test_a_run_sends_the_table_instead_of_the_model_and_ends_in_the_same_bits(
    tiny_folder: Path,
) -> None:
    """Every upload repeats the digest of its plan, so a client with another w would be refused."""
    changes = {"name": "fedkseed", "optimizer": {"lr": 0.01}, "directions": {"pool": 64}}
    simulation = build_simulation(quick(tiny_folder, rounds=4, method=changes))
    held = held_by(simulation.method, simulation.layout, simulation.start.w)
    assert isinstance(held, HeldStart)
    ends, down = {}, {}
    for key, kept in {"start": held, "whole": None}.items():
        engine, state = InProcess(simulation.client, kept), simulation.start
        history, down[key] = History.of(simulation), []
        for _ in range(4):
            state, record = run_round(simulation, engine, state, lambda *_: None, history)
            assert record.refused == {}
            down[key].append((record.downlink_bytes, record.downlink_whole))
        ends[key] = state
    assert torch.equal(ends["start"].w, ends["whole"].w)
    assert not torch.equal(ends["start"].w, simulation.start.w)
    for (sent, whole), (all_of_it, nothing) in zip(down["start"], down["whole"], strict=True):
        assert (whole, nothing) == (all_of_it, None)
        cohort = simulation.config.fleet.cohort
        assert whole - sent == pytest.approx(4 * simulation.layout.size * cohort, abs=100)


def test_a_stopped_run_goes_on_to_the_same_bits(tiny_folder: Path, tmp_path: Path) -> None:
    method_section = {"name": "fedkseed", "optimizer": {"lr": 0.01}, "directions": {"pool": 64}}
    config = quick(tiny_folder, rounds=3, method=method_section)
    whole = hofl.run(config, tmp_path / "whole")

    def stop(event: str, facts: dict) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "stopped", stop)
    resumed = hofl.resume(tmp_path / "stopped")
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)


def test_the_model_is_sent_where_the_table_is_larger_or_leads_elsewhere() -> None:
    model, chosen = tiny("llama"), few()
    start = start_of(chosen, model)
    state, _ = one_round(chosen, model, start, [0, 1], start.w)
    held = HeldStart(model.layout, start.w)
    plan = plan_for(model, 4, chosen.local, w=state.w, vectors=state.vectors)
    short = held.shorter(plan, lambda _: None)
    assert held.received(1, short).digest() == plan.digest()
    assert len(plan.to_bytes()) - len(short) == pytest.approx(4 * model.layout.size, abs=8)
    moved = replace(plan, w=plan.w + 1e-6)
    assert held.shorter(moved, lambda _: None) is None
    assert held.received(1, moved.to_bytes()).digest() == moved.digest()


def test_a_plan_without_a_model_that_cannot_be_made_is_refused() -> None:
    model = tiny("llama")
    held = HeldStart(model.layout, model.w.clone())
    bare = plan_for(model, 4, METHODS["mezo"].local, w=torch.zeros(0))
    with pytest.raises(PlanRefused, match="without w and without totals"):
        held.received(0, bare.to_bytes())
    wrong = plan_for(model, 4, few().local, w=torch.zeros(0), vectors={TOTALS: torch.zeros(3)})
    with pytest.raises(hofl.HoflError, match=r"totals \(3,\), its pool 7 candidates"):
        held.received(0, wrong.to_bytes())
    other = plan_for(model, 4, METHODS["mezo"].local, vectors={TOTALS: torch.zeros(3)})
    with pytest.raises(hofl.HoflError, match="cannot be made from 'gaussian' directions"):
        HeldStart(model.layout, model.w).shorter(other, lambda _: None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"directions": {"pool": 0}}, "pool must lie in 1..1048576 candidates, got 0"),
        ({"directions": {"pool": 2.5}}, "pool must lie in"),
        ({"directions": {"pool": 2**21}}, "pool must lie in"),
        ({"directions": {"seed": -1}}, "seed must lie in"),
        ({"directions": {"size": 3}}, "has no option 'size'"),
        ({"directions": "gaussian"}, "'from-start' needs directions=candidates"),
        ({"optimizer": "adamw"}, "'from-start' needs optimizer=sgd without weight_decay"),
        ({"optimizer": {"weight_decay": 0.1}}, "needs optimizer=sgd without weight_decay"),
        ({"proximal": 0.1}, "'from-start' needs proximal=0"),
        ({"bottom": "zeroth-order-vector"}, "'from-start' needs a bottom that is the whole model"),
        ({"name": "hofl", "directions": "candidates", "aggregation": "from-start"}, "whole model"),
    ],
)
def test_settings_that_cannot_be_rebuilt_are_one_line(options: dict, reason: str) -> None:
    config = quick(Path("unread"), method={"name": "fedkseed", **options})
    with pytest.raises(hofl.HoflError, match=reason) as raised:
        build_method(config)
    assert "\n" not in str(raised.value)


def test_candidates_also_serve_a_method_that_sums_updates() -> None:
    """HO-FL's bottoms may draw from a pool; its aggregation and catch-up stay what they are."""
    model, chosen = tiny("llama"), quickly(method("hofl", directions="candidates"))
    start = start_of(chosen, model)
    state, _ = one_round(chosen, model, start, [0, 1])
    assert not torch.equal(state.w, start.w)
    assert held_by(chosen, model.layout, model.w) is None
    assert isinstance(held_by(METHODS["hiso"], model.layout, model.w), HeldModels)
