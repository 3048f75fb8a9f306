"""Divergence: absurd weights are never kept, and no ordinary run is taken for a diverging one."""

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.data.tasks import load_task
from hofl.engines.base import Dispatch, Failure
from hofl.engines.local import InProcess
from hofl.experiment.build import build_simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.divergence import Divergence, chance_of, moved, scale_of
from hofl.experiment.records import RoundRecord
from hofl.experiment.rounds import train_until
from hofl.experiment.runs import RunDirectory
from hofl.messages import Upload
from support.runs import adapter_bytes, quick

ABSURD = {"lr": 1e12, "local_steps": 1, "weight_decay": 0.0}


@pytest.mark.parametrize("name", hofl.METHODS)
def test_absurd_but_finite_weights_are_not_kept_by_any_method(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    """One step from a finite gradient: whatever the rounding, this rate ends finite and huge."""
    config = quick(tiny_folder, method={"name": name, **ABSURD})
    with pytest.raises(hofl.HoflError, match=r"^round 1 diverged: .* away from their start") as e:
        hofl.run(config, tmp_path / "run")
    assert "round 0, the last good one, is kept" in str(e.value)
    run, experiment = RunDirectory(tmp_path / "run"), build_simulation(config)
    state = load_state(run, experiment.layout.digest)
    assert state is not None
    assert torch.equal(state.w, experiment.start.w)
    assert [row.round for row in run.metrics()] == [0]
    assert run.summary() is None


@pytest.mark.parametrize("lr", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("name", hofl.METHODS)
def test_no_ordinary_run_of_any_method_is_stopped(
    name: str, lr: float, tiny_folder: Path, tmp_path: Path
) -> None:
    """From B = 0 on, with dropouts and rounds that nobody answers; 1.0 is a very large rate."""
    config = quick(
        tiny_folder,
        rounds=9,
        seed=6,
        method={"name": name, "lr": lr},
        fleet={"cohort": 2, "dropout": 0.5},
    )
    experiment = build_simulation(config)
    run = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    train_until(experiment, InProcess(experiment.client), run, lambda *_: None, 8)
    rows = run.metrics()[1:]
    assert [row.round for row in rows] == list(range(1, 9))
    assert {not row.answered for row in rows} == {False, True}
    assert all((row.update_norm > 0) == bool(row.answered) for row in rows)


def test_noise_for_privacy_is_not_taken_for_divergence(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(
        tiny_folder,
        rounds=6,
        privacy={"noise": 50.0, "scalar_clip": 1.0, "difference_clip": 1.0},
        fleet={"clients": 30},
    )
    assert hofl.run(config, tmp_path / "run").summary["rounds"] == 6


def test_rows_hold_the_norms_of_the_states(tiny_folder: Path, tmp_path: Path) -> None:
    """Oracle: the checkpoints of one run, stopped after every round."""
    config = quick(tiny_folder)
    experiment, states = build_simulation(config), []
    run = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    for last in range(4):
        state = train_until(experiment, InProcess(experiment.client), run, lambda *_: None, last)
        states.append(state.w.double().numpy().copy())
    for number, row in enumerate(run.metrics()[1:], 1):
        update = np.sqrt(np.sum((states[number] - states[number - 1]) ** 2))
        distance = np.sqrt(np.sum((states[number] - states[0]) ** 2))
        assert row.update_norm == pytest.approx(update, rel=1e-5)
        assert row.distance == pytest.approx(distance, rel=1e-5)


class Growing(InProcess):
    """An engine whose differences grow thirtyfold from round to round."""

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for answer in super().gather(dispatches):
            assert isinstance(answer, bytes)
            upload = Upload.from_bytes(answer)
            assert isinstance(upload.difference, torch.Tensor)
            scaled = upload.difference * 30.0**upload.round
            yield replace(upload, difference=scaled).to_bytes()


@pytest.mark.parametrize("name", ["fedavg", "recompute", "hofl"])
def test_a_resumed_run_stops_at_the_same_round_with_the_same_words(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, rounds=20, method={"name": name, "lr": 1e-3})

    def train(path: Path, last: int) -> str:
        experiment = build_simulation(config)
        if not path.exists():
            RunDirectory.create(path, experiment.config, experiment.secret)
        engine = Growing(experiment.client)
        try:
            train_until(experiment, engine, RunDirectory.open(path), lambda *_: None, last)
        except hofl.HoflError as error:
            return str(error)
        return ""

    whole = train(tmp_path / "whole", 19)
    kept = RunDirectory(tmp_path / "whole").metrics()[-1].round
    assert whole.startswith(f"round {kept + 1} diverged: ")
    assert whole == train(tmp_path / "whole", 19), "resumed, it tries the round again"
    for stop in range(kept + 1):
        folder = tmp_path / f"stopped after {stop}"
        assert train(folder, stop) == ""
        assert train(folder, 19) == whole


def test_the_advice_works(tiny_folder: Path, tmp_path: Path) -> None:
    """With the rate lowered in config.toml, the resumed run ends as one that always had it."""
    with pytest.raises(hofl.HoflError, match=r"config.toml, .* and resume: round 0"):
        hofl.run(quick(tiny_folder, method=ABSURD), tmp_path / "run")
    good = hofl.run(quick(tiny_folder, method={**ABSURD, "lr": 1e-2}), tmp_path / "good")
    shutil.copy(good.path / "config.toml", tmp_path / "run" / "config.toml")
    resumed = hofl.resume(tmp_path / "run")
    assert adapter_bytes(resumed.path) == adapter_bytes(good.path)


def test_who_wants_such_rounds_can_keep_them(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(tiny_folder, rounds=1, method=ABSURD, server={"divergence": False})
    result = hofl.run(config, tmp_path / "run")
    assert RunDirectory(result.path).metrics()[-1].distance > 1e12


def rows(updates: Iterable[float], losses: Iterable[float] = ()) -> list[RoundRecord]:
    """Rounds from 1 on whose updates all point the same way."""
    made, distance, given = [], 0.0, iter(losses)
    for number, update in enumerate(updates, 1):
        distance += update
        norms = {"update_norm": update, "distance": distance}
        made.append(RoundRecord(round=number, **norms, train_loss=next(given, None)))
    return made


def stopped_at(given: list[RoundRecord], chance: float = math.inf) -> int | None:
    """The round at which a run from a start of norm 1 is stopped, after any number of rows."""
    stops = set()
    for resumed in range(len(given)):
        divergence = Divergence(1.0, chance, given[:resumed])
        for row in given[resumed:]:
            try:
                divergence.judge(row)
            except hofl.HoflError:
                stops.add(row.round)
                break
        else:
            stops.add(None)
        if row.round == resumed + 1 and stops != {None}:
            break  # what was refused is never recorded
    assert len(stops) == 1
    return stops.pop()


LEARNING = {
    "constant": rows([0.5] * 150, [1.0] * 3 + [0.2] * 147),
    "tiny at first": rows([1e-9, 1e-6, 1e-3, 0.5, 0.5, 0.5]),
    "warming up": rows([1e-6 * 2.0**t for t in range(20)] + [1.0] * 10),
    "nobody answers for long": rows([0.1] + [0.0] * 20 + [5.0] * 5),
    "nothing is trained": rows([0.0] * 20, [1.4] * 20),
    "a large first step": rows([90.0] + [1e-3] * 20, [2.0] + [1.0] * 20),
    "one bad loss far away": rows([60.0] * 9, [2, 0.1, 0.1, 9, 0.1, 0.1, 9, 0.1, 0.1]),
    "a spike that is small beside the weights": rows([1e-4] * 9 + [5.0] + [1e-4] * 9),
    "worse than the start, near it": rows([0.5] * 100, [1.0] + [3.0] * 99),
}


@pytest.mark.parametrize("name", LEARNING)
def test_what_learning_can_look_like_is_let_through(name: str) -> None:
    assert stopped_at(LEARNING[name], chance=0.7) is None


@pytest.mark.parametrize(
    ("given", "stop"),
    [
        (rows([9e36]), 1),
        (rows([math.inf]), 1),
        (rows([math.nan]), 1),
        (rows([0.1, 0.2, 2e6]), 3),
        (rows([3e5] * 9), 4),  # 1e6 away in four steps, loss or no loss
        (rows([0.01] * 5 + [50.0]), 6),
        (rows([0.01, 0.0, 0.01, 0.0, 0.01, 50.0]), 6),
        (rows([40.0] * 9, [0.9, 2.2, 5.1, 1.2, 0.8]), 3),
        (rows([40.0] * 9, [0.9, 0.8, 0.75, 0.71]), 3),  # below the start, but no better than chance
        (rows([200.0] + [0.1] * 9, [0.5] + [0.6] * 9), 3),  # thrown far at once, and stuck there
    ],
)
def test_what_divergence_looks_like_is_stopped(given: list[RoundRecord], stop: int) -> None:
    assert stopped_at(given, chance=0.7) == stop


def test_a_ruined_round_is_not_called_good() -> None:
    divergence = Divergence(1.0, 0.7, rows([300.0, 1.0], [0.9, 0.9]))
    row = RoundRecord(round=3, update_norm=1.0, distance=302.0, train_loss=0.9)
    with pytest.raises(
        hofl.HoflError, match=r"Start again with a lower learning rate: round 2, hardly"
    ):
        divergence.judge(row)


@pytest.mark.parametrize(("keep", "kept"), [(3, True), (2, False)])
def test_the_last_good_round_is_named_if_it_is_kept(keep: int, kept: bool) -> None:
    """Thrown far in round 1 of a run whose last checkpoints are those of rounds 0, 1 and 2."""
    divergence = Divergence(1.0, 0.7, rows([300.0, 1.0], [0.9, 0.9]), keep)
    row = RoundRecord(round=3, update_norm=1.0, distance=302.0, train_loss=0.9)
    with pytest.raises(hofl.HoflError, match="round 3 diverged") as error:
        divergence.judge(row)
    assert ("--from-round 0" in str(error.value)) == kept


def test_scale_and_chance_are_the_start_s_and_the_task_s() -> None:
    assert scale_of(torch.full((100,), 0.5)) == pytest.approx(5.0)
    assert scale_of(torch.zeros(100)) == pytest.approx(1e-2)
    assert chance_of(load_task("helpdesk").prompt()) == pytest.approx(math.log(4))
    three, four = torch.tensor([3.0, 0.0]), torch.tensor([3.0, 4.0])
    assert moved(torch.zeros(2), three, four) == (4.0, 5.0)
