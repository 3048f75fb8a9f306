"""DeComFL's catch-up: missed rounds, repeated from keys and mean scalars, end in the same bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hofl.catchup import CatchUp, HeldModels, MissedRound, catches_up
from hofl.core.errors import HoflError, PlanRefused
from hofl.core.wire import pack_message
from hofl.engines.local import InProcess
from hofl.experiment.attempt import History
from hofl.experiment.build import build_simulation
from hofl.experiment.records import RoundRecord
from hofl.experiment.rounds import one_round as run_round
from hofl.messages import RoundPlan
from hofl.methods import METHODS, Method, method
from hofl.models.split import SplitModel
from hofl.server.aggregate import MeanOfScalars
from hofl.server.state import ServerState
from support.family import key_at, one_round, quickly, start_of
from support.models import tiny
from support.runs import quick
from support.steps import plan_for

SHARED = ["decomfl-sgd", "hiso"]


def trained(chosen: Method, model: SplitModel, rounds: int) -> tuple[list, list[MissedRound]]:
    """The states of a run, and of each round what a client that missed it would pull."""
    states, missed = [start_of(chosen, model)], []
    for t in range(rounds):
        state, added = one_round(chosen, model, states[-1], [0, 1, 2])
        total = MeanOfScalars(model.layout)
        for each in added:
            total.add(each)
        states.append(state)
        missed.append(MissedRound(key_at(t, None), total.replayable()))
    return states, missed


def plan_at(chosen: Method, model: SplitModel, state: ServerState, **fields: object) -> RoundPlan:
    values = {"round": state.round, "w": state.w, "vectors": state.vectors, "verify": True}
    return plan_for(model, 4, chosen.local, **{**values, **fields})


@pytest.mark.parametrize("name", SHARED)
def test_a_client_that_was_away_ends_in_the_bits_of_one_that_was_not(name: str) -> None:
    model, chosen = tiny("llama"), quickly(METHODS[name])
    states, missed = trained(chosen, model, 4)
    plan = plan_at(chosen, model, states[4])
    for since in range(5):
        message = CatchUp.of(plan, missed[since:]).to_bytes()
        held = HeldModels(model.layout)
        held.received(7, plan_at(chosen, model, states[since]).to_bytes())
        assert held.round_of(7) == since
        received = held.received(7, message)
        assert torch.equal(received.w, states[4].w)
        assert received.digest() == plan.digest(), "w, H and everything else"
        assert held.round_of(7) == 4


def test_the_order_of_model_and_curvature_matters() -> None:
    """The check above would see it: with the newer H, or rounds swapped, the bits are others."""
    model, chosen = tiny("llama"), quickly(METHODS["hiso"])
    states, missed = trained(chosen, model, 2)
    plan = plan_at(chosen, model, states[2])
    ends = []
    for rounds, vectors in (
        (missed, states[0].vectors),
        (missed[::-1], states[0].vectors),
        (missed, states[1].vectors),
    ):
        start = ServerState(states[0].w, 0, vectors)
        ends.append(CatchUp.of(plan, rounds).applied(start, model.layout).w)
    assert torch.equal(ends[0], states[2].w)
    assert not torch.equal(ends[1], states[2].w)
    assert not torch.equal(ends[2], states[2].w)


def test_bytes_are_a_key_and_the_scalars_of_every_missed_round() -> None:
    model, chosen = tiny("llama"), quickly(METHODS["decomfl-sgd"])
    states, missed = trained(chosen, model, 3)
    plan = plan_at(chosen, model, states[3])
    sizes = [len(CatchUp.of(plan, missed[since:]).to_bytes()) for since in (2, 1, 0)]
    each = 20 + 4 * 2 * 5  # a key, and E q float32
    assert sizes[1] - sizes[0] == pytest.approx(each, abs=8), "safetensors aligns to 8 bytes"
    assert sizes[2] - sizes[1] == pytest.approx(each, abs=8)
    assert sizes[0] < len(plan.to_bytes()) < sizes[0] + 4 * model.layout.size


def test_a_run_with_catch_up_has_the_bits_of_one_without_and_the_smaller_downlink(
    tiny_folder: Path,
) -> None:
    """Every upload repeats the digest of its plan, so a client with another w would be refused."""
    changes = {"name": "decomfl-sgd", "optimizer": {"lr": 0.01}, "q": 5}
    simulation = build_simulation(quick(tiny_folder, rounds=5, method=changes))
    assert catches_up(simulation.method, simulation.layout)
    ends, rows = {}, {}
    for key, held in {"held": HeldModels(simulation.layout), "whole": None}.items():
        engine, state, rows[key] = InProcess(simulation.client, held), simulation.start, []
        history = History.of(simulation)
        for _ in range(5):
            state, record = run_round(simulation, engine, state, lambda *_: None, history)
            assert record.refused == {}
            rows[key].append(RoundRecord.from_json(record.to_json()))
        ends[key] = state.w
    assert torch.equal(ends["held"], ends["whole"])
    assert not torch.equal(ends["held"], simulation.start.w)
    saved = 0
    for held, whole in zip(rows["held"], rows["whole"], strict=True):
        assert held.scalars == whole.scalars
        assert (held.downlink_whole or held.downlink_bytes) == whole.downlink_bytes
        assert held.downlink_bytes <= whole.downlink_bytes
        saved += whole.downlink_bytes - held.downlink_bytes
        assert whole.downlink_whole is None
    assert rows["held"][0].downlink_whole is None, "nobody holds a model in the first round"
    assert saved > 10_000
    later = History.of(simulation, rows["held"])
    assert later.means.keys() == set(range(5)), "a resumed server knows the rounds from its records"


def test_the_whole_model_is_sent_where_it_is_smaller_or_a_round_cannot_be_repeated() -> None:
    model = tiny("llama")
    chosen = quickly(method("decomfl-sgd", q=200), steps=5)
    rounds = [MissedRound(key_at(t, None), [[0.1] * 200] * 5) for t in range(3)]
    plan = plan_at(chosen, model, ServerState(model.w.clone(), 3))
    assert len(CatchUp.of(plan, rounds).to_bytes()) > len(plan.to_bytes())
    other = method("decomfl-sgd", aggregation="mean"), METHODS["fedzo"], METHODS["hofl"]
    assert not any(catches_up(each, model.layout) for each in other)


@pytest.mark.parametrize("name", ["hofl", "decomfl"])
def test_differences_and_own_directions_are_averaged_as_ever(name: str) -> None:
    """Where nothing is shared, averaging scalars first changes nothing but rounding."""
    model, plain = tiny("llama"), quickly(METHODS[name])
    scalars = replace(plain, aggregation=replace(plain.aggregation, name="mean-of-scalars"))
    start = start_of(plain, model)
    ends = [one_round(each, model, start, [0, 1, 2])[0].w for each in (plain, scalars)]
    assert torch.allclose(*ends, rtol=0, atol=1e-7)


def damaged(plan: RoundPlan, missed: list[MissedRound]) -> dict[str, bytes]:
    """Catch-ups that no server sends."""
    good = CatchUp.of(plan, missed)
    wild = replace(good, scalars=torch.full_like(good.scalars, float("nan")))
    tensors = {"plan": torch.zeros(5, dtype=torch.uint8), "keys": good.keys}
    return {
        "not finite": wild.to_bytes(),
        "since 9": replace(good, since=9).to_bytes(),
        "keys of a catch-up is": replace(good, keys=good.keys[:1]).to_bytes(),
        "scalars of a catch-up is": replace(good, scalars=good.scalars[:, :1]).to_bytes(),
        "not a hofl message": pack_message(
            "catch-up", {"since": 0}, {**tensors, "scalars": good.scalars}
        ),
        "malformed catch-up": pack_message("catch-up", {"since": 0}, {"keys": good.keys}),
    }


def test_malformed_catch_ups_are_refused_with_a_reason() -> None:
    model, chosen = tiny("llama"), quickly(METHODS["decomfl-sgd"])
    plan = plan_at(chosen, model, ServerState(model.w.clone(), 2))
    missed = [MissedRound(key_at(t, None), [[0.1] * 5] * 2) for t in range(2)]
    for reason, message in damaged(plan, missed).items():
        with pytest.raises(PlanRefused, match=reason):
            CatchUp.from_bytes(message)
    with pytest.raises(PlanRefused, match="starts at round 0, I hold 1"):
        CatchUp.of(plan, missed).applied(ServerState(model.w, 1), model.layout)
    with pytest.raises(HoflError, match="holds no model"):
        HeldModels(model.layout).received(3, CatchUp.of(plan, missed).to_bytes())
