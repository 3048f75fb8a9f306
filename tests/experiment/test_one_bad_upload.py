"""No single upload ends a run: it is refused, the others count, and there is always a way back.

Oracle: the same run in which that device simply gave no answer, bit for bit.
"""

import math
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from transformers import AutoModelForCausalLM

import hofl
from hofl.core.errors import HoflError
from hofl.engines.base import Dispatch, Failure
from hofl.engines.local import InProcess
from hofl.experiment.build import Simulation, build_simulation
from hofl.experiment.checkpoint import load_state, sound_rounds
from hofl.experiment.config import parse_config
from hofl.experiment.rounds import one_round, train_until
from hofl.experiment.runs import RunDirectory, config_text
from hofl.messages import Upload
from hofl.server.outliers import Outliers
from support.runs import adapter_bytes, quick, run_cli

Lie = Callable[[Upload], Upload]


class OneLiar(InProcess):
    """An engine whose device ``liar`` changes what it sends in one round, or is silent there."""

    def __init__(self, client, liar: int, at: int, lie: Lie | None) -> None:
        super().__init__(client)
        self._liar, self._at, self._lie = liar, at, lie
        self.lied = 0

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        plans = []

        def heard() -> Iterator[Dispatch]:
            for dispatch in dispatches:
                plans.append(dispatch.plan)
                yield dispatch

        for number, answer in enumerate(super().gather(heard())):
            plan = plans[number]
            if (plan.client, plan.round) == (self._liar, self._at):
                self.lied += 1
                assert isinstance(answer, bytes)
                lied = self._lie and self._lie(Upload.from_bytes(answer)).to_bytes()
                yield lied or Failure("asleep")
            else:
                yield answer


def difference(value: float) -> Lie:
    return lambda upload: replace(upload, difference=torch.full_like(upload.difference, value))


def times(factor: float) -> Lie:
    return lambda upload: replace(upload, difference=upload.difference * factor)


def scalars(value: float) -> Lie:
    return lambda upload: replace(
        upload, scalars=torch.full_like(upload.scalars, value), bottom_hash=""
    )


@cache
def built(text: str) -> Simulation:
    """One experiment for all runs of one configuration: a run changes nothing in it."""
    return build_simulation(parse_config(tomllib.loads(text)))


def trained(config, path: Path, liar: int, at: int, lie: Lie | None) -> tuple[torch.Tensor, list]:
    experiment = built(config_text(config))
    run = RunDirectory.create(path, experiment.config, experiment.secret)
    engine = OneLiar(experiment.client, liar, at, lie)
    state = train_until(experiment, engine, run, lambda *_: None, config.rounds)
    assert engine.lied
    return state.w, run.metrics()


@cache
def without(text: str, liar: int, at: int) -> torch.Tensor:
    """The model of the same run in which that device gave no answer."""
    with TemporaryDirectory() as folder:
        return trained(parse_config(tomllib.loads(text)), Path(folder) / "run", liar, at, None)[0]


def liar_of(config, place: int, at: int) -> int:
    experiment = built(config_text(config))
    return experiment.cohort(at, experiment.present(at))[place]


SGD = {"optimizer": {"name": "sgd", "lr": 1e-2, "weight_decay": 0.0}}
CASES = {
    "a difference of 3e38": ({}, difference(3e38)),
    "a difference of 1e20": ({}, difference(1e20)),
    "a difference a hundred thousand times too large": ({}, times(1e5)),
    "scalars of 1e30 under SGD": ({"method": SGD, "server": {"verify": False}}, scalars(1e30)),
}


@pytest.mark.parametrize(("place", "at"), [(0, 0), (2, 1)])
@pytest.mark.parametrize("case", CASES)
def test_an_update_out_of_proportion_is_refused_and_the_others_count(
    case: str, place: int, at: int, tiny_folder: Path, tmp_path: Path
) -> None:
    changes, lie = CASES[case]
    config = quick(tiny_folder, rounds=at + 2, **changes)
    liar = liar_of(config, place, at)
    w, rows = trained(config, tmp_path / "lying", liar, at, lie)
    assert "the norm of its update is" in rows[at + 1].refused[liar]
    assert torch.equal(w, without(config_text(config), liar, at))
    assert not any(row.refused for row in rows if row.round != at + 1)
    assert all(row.norm for row in rows[1:])


@pytest.mark.parametrize("lie", [difference(3e38), difference(1e20), times(1e5), times(1e4)])
def test_with_a_cohort_of_two_an_absurd_update_is_refused_from_the_first_round_on(
    lie: Lie, tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, rounds=2, fleet={"cohort": 2})
    for at in (0, 1):
        liar = liar_of(config, 0, at)
        w, rows = trained(config, tmp_path / f"lying-{at}", liar, at, lie)
        assert list(rows[at + 1].refused) == [liar]
        assert torch.equal(w, without(config_text(config), liar, at))


@pytest.fixture(scope="module")
def surer(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose logits are large enough to be very wrong."""
    folder = tmp_path_factory.mktemp("surer") / "model"
    shutil.copytree(tiny_folder, folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    model.lm_head.weight.data *= 300
    model.save_pretrained(folder)
    return folder


def test_a_model_that_one_large_update_ruins_is_not_kept(surer: Path, tmp_path: Path) -> None:
    """Within the limit, but the loss on the test examples is absurd."""
    config = quick(surer, rounds=3, method={"name": "fedavg"}, server={"max_ratio": 1e7})
    liar = liar_of(config, 1, 1)
    w, rows = trained(config, tmp_path / "lying", liar, 1, times(-1e5))
    assert "the loss rises from" in rows[2].refused[liar]
    assert torch.equal(w, without(config_text(config), liar, 1))


@pytest.mark.parametrize("cohort", [1, 2])
def test_nor_where_no_norm_is_usual_yet(cohort: int, surer: Path, tmp_path: Path) -> None:
    """A round without a history, from weights of which a large update can make worse ones."""
    fleet, server = {"cohort": cohort}, {"max_ratio": 1e7}
    config = quick(surer, rounds=2, method={"name": "fedavg"}, fleet=fleet, server=server)
    experiment, liar = build_simulation(config), liar_of(config, 0, 1)
    run = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    larger = build_simulation(quick(surer, rounds=2, method={"name": "fedavg"}))
    state = train_until(larger, InProcess(larger.client), run, lambda *_: None, 1)
    ends = []
    for lie in (None, times(-1e5)):
        engine = OneLiar(experiment.client, liar, 1, lie)
        ends.append(one_round(experiment, engine, state, lambda *_: None))
    (silent, _), (new, row) = ends
    assert torch.equal(new.w, silent.w)
    (reason,) = {draw.refused[liar] for draw in row.attempts if liar in draw.refused}
    assert "the loss rises from" in reason


def test_a_large_update_that_does_no_harm_counts(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(tiny_folder, rounds=2, method={"lr": 1e-5})
    liar = liar_of(config, 1, 1)
    _, rows = trained(config, tmp_path / "run", liar, 1, times(100.0))
    assert liar in rows[2].answered


def test_the_limit_can_be_switched_off(tiny_folder: Path, tmp_path: Path) -> None:
    """Then that update is averaged, and the check for divergence stops the run as before."""
    config = quick(tiny_folder, rounds=2, server={"max_ratio": math.inf})
    with pytest.raises(HoflError, match="round 1 diverged"):
        trained(config, tmp_path / "run", liar_of(config, 0, 0), 0, difference(1e20))


def test_outliers_are_judged_by_the_cohort_and_by_recent_rounds() -> None:
    assert Outliers(10, 1.0).refused({1: 1.0, 2: 1.1, 3: 10.4}) == {}
    assert list(Outliers(10, 1.0).refused({1: 1.0, 2: 1.1, 3: 11.1})) == [3]
    # Two cannot judge each other: a device that sends nothing must not shut out the other one.
    assert Outliers(10, 1.0).refused({1: 0.0, 2: 100.0}) == {}
    assert list(Outliers(10, 1.0).refused({1: 0.0, 2: 101.0})) == [2], "beyond every first update"
    assert Outliers(10, 1.0).refused({1: 200.0, 2: 900.0}) == {}
    assert Outliers(10, 1.0).suspects({1: 0.1, 2: 50.0}) == [2]
    assert Outliers(10, 1.0).suspects({1: 0.0, 2: 0.0}) == []
    assert list(Outliers(10, 1.0, [1.0]).refused({2: 100.0})) == [2]
    # Of many earlier rounds the last count, and a cohort that grows as a whole is no outlier.
    assert Outliers(10, 1.0, [1e-9] * 9 + [90.0] * 3).refused({2: 100.0}) == {}
    assert Outliers(10, 1.0, [1.0] * 5).refused(dict.fromkeys(range(3), 100.0)) == {}
    # Everyone beyond every scale: nobody in particular is at fault.
    assert Outliers(10, 1.0).refused(dict.fromkeys(range(3), 1e30)) == {}
    assert Outliers(math.inf, 1.0, [1.0]).refused({1: 1.0, 2: 1e38}) == {}


@pytest.fixture(scope="module")
def finished(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = quick(tiny_folder, rounds=5)
    return hofl.run(config, tmp_path_factory.mktemp("kept") / "run").path


def test_the_last_checkpoints_are_kept_and_a_run_can_go_back_to_them(finished: Path) -> None:
    run, bits = RunDirectory(finished), adapter_bytes(finished)
    assert sound_rounds(run) == [5, 4, 3]
    for round_number in (4, 3, 3):
        assert hofl.resume(finished, from_round=round_number).path == finished
        assert adapter_bytes(finished) == bits
        assert [row.round for row in run.metrics()] == [0, 1, 2, 3, 4, 5]
        assert sound_rounds(run)[0] == 5
    with pytest.raises(HoflError, match="no checkpoint of round 1; kept are: 5, 4, 3"):
        hofl.resume(finished, from_round=1)
    assert run.summary() is not None, "a refused return changes nothing"


def test_from_round_on_the_command_line(finished: Path, tmp_path: Path) -> None:
    bits = adapter_bytes(finished)
    code, output = run_cli("run", "--resume", str(finished), "--from-round", "4")
    assert code == 0, output
    assert adapter_bytes(finished) == bits
    code, output = run_cli("run", "demo", "--out", str(tmp_path / "x"), "--from-round", "4")
    assert (code, "--from-round is for --resume" in output) == (2, True)


def test_only_as_many_are_kept_as_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    run = RunDirectory(hofl.run(quick(tiny_folder, server={"keep": 1}), tmp_path / "run").path)
    names = {path.name for path in run.checkpoint.iterdir()}
    assert names == {"state.safetensors", "secret.key"}
    state = load_state(run)
    assert state is not None
    assert state.round == 3


class LongWinded(InProcess):
    """An engine whose first device fails with a page of text."""

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for number, answer in enumerate(super().gather(dispatches)):
            yield answer if number else Failure("no power\n" + "at line 7\n" * 5000)


def test_the_reason_of_a_refusal_is_one_short_line(tiny_folder: Path) -> None:
    experiment = build_simulation(quick(tiny_folder))
    engine = LongWinded(experiment.client)
    _, row = one_round(experiment, engine, experiment.start, lambda *_: None)
    assert list(row.refused.values()) == ["no power"]
