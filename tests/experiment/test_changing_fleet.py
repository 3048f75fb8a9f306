"""Fleets that change: exact shares for those who are there, back-off, repeats, lost rounds."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.engines.base import DeviceOffer, Dispatch, Failure, RoundLost
from hofl.engines.client import LocalClient
from hofl.engines.local import InProcess
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.rounds import one_round, run_rounds
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tally import Health, summarise
from support.runs import adapter_bytes, quick


class Changing(InProcess):
    """Who is there, and what goes wrong, as a function of how often was asked."""

    def __init__(
        self,
        client: LocalClient,
        there: Callable[[int], Mapping[int, int] | None] = lambda draw: None,
        wrong: Callable[[int, int], str | None] = lambda draw, client: None,
        lost: Iterable[int] = (),
    ) -> None:
        super().__init__(client)
        self._there, self._wrong, self._lost = there, wrong, set(lost)
        self.draws = 0

    def join(self) -> Mapping[int, DeviceOffer] | None:  # type: ignore[override]
        self.draws += 1
        there = self._there(self.draws)
        return None if there is None else offers(there)

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for number, dispatch in enumerate(dispatches):
            if self.draws in self._lost and number == 1:
                raise RoundLost("the hub died")
            reason = self._wrong(self.draws, dispatch.plan.client)
            yield Failure(reason) if reason else next(super().gather([dispatch]))


def offers(boundaries: Mapping[int, int]) -> dict[int, DeviceOffer]:
    return {client: DeviceOffer(b, examples=1) for client, b in boundaries.items()}


@pytest.fixture(scope="module")
def experiment(tiny_folder: Path) -> Experiment:
    return build_simulation(quick(tiny_folder, method={"local_steps": 1, "beta": 0.5}))


def test_shares_are_exact_for_those_who_are_there(experiment: Experiment) -> None:
    """Oracle: how often each of four present clients is drawn in 4,000 draws of two."""
    own = {0: 1, 2: 3, 3: 2, 9: 1}
    present = experiment.present(0, offers(own))
    config = experiment.config.model_copy(
        update={"fleet": experiment.config.fleet.model_copy(update={"cohort": 2})}
    )
    narrow = replace(experiment, config=config)
    p = narrow.marginals(0, present)
    # Half of the weight is uniform, half goes to the two clients of smallest boundary, 0 and 9.
    assert p == pytest.approx([0.125 + 0.25, 0.125, 0.125, 0.125 + 0.25])
    drawn = Counter(i for t in range(4000) for i in narrow.cohort(t, present))
    assert set(drawn) == set(own)
    for client, share in zip(sorted(own), p, strict=True):
        assert drawn[client] / 4000 == pytest.approx(2 * share, abs=0.04)


def test_a_fleet_smaller_than_the_cohort_takes_part_whole(experiment: Experiment) -> None:
    engine = Changing(experiment.client, there=lambda draw: {1: 2, 4: 1})
    _, row = one_round(experiment, engine, experiment.start, lambda *_: None)
    assert row.cohort == row.answered == [1, 4]
    assert row.present == {1: 2, 4: 1}


def test_a_late_device_takes_part_from_the_next_round_on(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(tiny_folder, rounds=4, method={"local_steps": 1})
    experiment = build_simulation(config)
    engine = Changing(
        experiment.client, there=lambda draw: {0: 1, 1: 2} | ({5: 3} if draw > 2 else {})
    )
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    summary = run_rounds(experiment, engine, directory, lambda *_: None)
    cohorts = [row.cohort for row in directory.metrics()[1:]]
    assert cohorts == [[0, 1], [0, 1], [0, 1, 5], [0, 1, 5]]
    assert summary.audit["realised"] == [4, 4, 0, 0, 0, 2]
    assert summary.audit["expected"] == [4, 4, 0, 0, 0, 2]
    assert summary.audit["impossible"] == []


def test_a_round_with_too_few_answers_is_repeated_and_counts_once(experiment: Experiment) -> None:
    """Oracle: the same round without the failure, for the same cohort."""
    server = experiment.config.server.model_copy(update={"min_answers": 3})
    strict = replace(experiment, config=experiment.config.model_copy(update={"server": server}))
    there = {0: 1, 1: 2, 2: 3}
    state = strict.start
    good = Changing(strict.client, there=lambda draw: there)
    bad = Changing(
        strict.client,
        there=lambda draw: there,
        wrong=lambda draw, client: "no power" if (draw, client) == (1, 1) else None,
    )
    expected, _ = one_round(strict, good, state, lambda *_: None)
    found, row = one_round(strict, bad, state, lambda *_: None)
    assert torch.equal(found.w, expected.w)
    assert [attempt.refused for attempt in row.repeats] == [{1: "no power"}]
    assert row.answered == [0, 1, 2]


def test_a_round_that_never_gets_enough_answers_ends_in_one_line(experiment: Experiment) -> None:
    engine = Changing(experiment.client, wrong=lambda draw, client: "no power")
    with pytest.raises(hofl.HoflError, match=r"round 1: no client gave .*no power"):
        one_round(experiment, engine, experiment.start, lambda *_: None)
    assert engine.draws == experiment.config.server.attempts


def test_a_lost_round_is_run_again_with_the_same_cohort_and_bits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, method={"local_steps": 1})
    expected = hofl.run(config, tmp_path / "whole")
    experiment = build_simulation(config)
    engine = Changing(experiment.client, lost=(1, 2, 4))
    directory = RunDirectory.create(tmp_path / "lost", experiment.config, experiment.secret)
    run_rounds(experiment, engine, directory, lambda *_: None)
    assert engine.draws == 3 + 3
    rows = directory.metrics()
    assert [len(row.lost) for row in rows] == [0, 2, 1, 0], "they may have answered"
    assert all(lost == row.cohort for row in rows for lost in row.lost)
    assert adapter_bytes(directory.path) == adapter_bytes(expected.path)


def test_a_device_that_fails_again_and_again_rests_longer_and_longer_and_comes_back(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Client 1 fails in its first four draws. The rests are counted by hand: 0, 1, 2, 4 draws."""
    config = quick(tiny_folder, rounds=14, method={"local_steps": 1})
    experiment = build_simulation(config)
    asked: list[int] = []

    def wrong(draw: int, client: int) -> str | None:
        if client == 1:
            asked.append(draw)
        return "no power" if client == 1 and len(asked) <= 4 else None

    engine = Changing(experiment.client, there=lambda draw: {0: 1, 1: 2, 2: 3}, wrong=wrong)
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    run_rounds(experiment, engine, directory, lambda *_: None)
    assert asked == [1, 2, 4, 7, 12, 13, 14]
    rows = directory.metrics()
    assert [row.round for row in rows if 1 in row.resting] == [3, 5, 6, 8, 9, 10, 11]
    again = Health.of(rows[:8])
    assert again.resting() == [1], "a resumed run rests the same clients"
    assert summarise(experiment, rows).audit["impossible"] == []


def test_when_everyone_rests_everyone_is_asked(experiment: Experiment) -> None:
    everyone = experiment.present(0, offers({0: 1, 1: 2}))
    assert everyone.without([0, 1]).clients.tolist() == [0, 1]
    assert everyone.without([0]).clients.tolist() == [1]
    assert everyone.without([0], 2).clients.tolist() == [0, 1], "two answers are wanted"


def test_costs_given_by_client_follow_the_clients_that_are_there(tiny_folder: Path) -> None:
    """Shares of a part of the fleet are those of a fleet that has only these clients."""
    costs = (5.0, 1.0, 4.0, 2.0, 3.0, 9.0)
    options = {"policy": "water-filling", "weight": 1.0, "floor": 0.1}
    whole = build_simulation(quick(tiny_folder, method={**options, "costs": costs}))
    part = build_simulation(
        quick(
            tiny_folder,
            fleet={"clients": 4},
            method={**options, "costs": (1.0, 4.0, 3.0, 9.0)},
        )
    )
    present = whole.present(0, offers({1: 2, 2: 2, 4: 2, 5: 2}))
    assert np.array_equal(whole.marginals(0, present), part.marginals(0, part.present(0)))


def test_a_late_device_without_a_cost_counts_with_the_mean_and_ends_nothing(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Oracle: the same fleet with 4 written down, the mean of the others' costs."""
    costs = (5.0, 1.0, 4.0, 2.0, 3.0, 9.0)
    options = {"policy": "water-filling", "weight": 30.0, "floor": 0.1, "local_steps": 1}
    config = quick(tiny_folder, rounds=4, fleet={"cohort": 2}, method={**options, "costs": costs})
    longer = quick(
        tiny_folder, fleet={"clients": 7, "cohort": 2}, method={**options, "costs": (*costs, 4.0)}
    )
    experiment, known = build_simulation(config), build_simulation(longer)
    own = offers({0: 1, 1: 2, 5: 3, 6: 2})
    p = experiment.marginals(0, experiment.present(0, own))
    assert np.array_equal(p, known.marginals(0, known.present(0, own)))
    assert len(set(p.tolist())) == len(own), "costs matter here"
    engine = Changing(known.client, there=lambda draw: {0: 1, 1: 2} | ({6: 2} if draw > 2 else {}))
    directory = RunDirectory.create(tmp_path / "run", experiment.config, experiment.secret)
    summary = run_rounds(experiment, engine, directory, lambda *_: None)
    assert summary.rounds == 4
    assert summary.audit["impossible"] == []
    assert [len(row.present) for row in directory.metrics()[1:]] == [2, 2, 3, 3]
