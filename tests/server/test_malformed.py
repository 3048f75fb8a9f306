"""Malformed uploads of every kind: refused by the round loop, each with its reason.

The model stays as it is.

Oracle: the same round in which that client simply gave no answer, bit for bit.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hofl.engines.base import Dispatch, Failure
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.rounds import one_round
from hofl.messages import RoundPlan
from support.malformed_kinds import KINDS, Scene
from support.runs import quick

VICTIM = 1  # place in the cohort


class Canned:
    """An engine whose answers are already there."""

    def __init__(self, answers: list[bytes | Failure]) -> None:
        self._answers = answers

    def join(self) -> None:
        """Everyone whom the configuration knows."""

    def traffic(self) -> dict[int, dict[str, float]]:
        return {}

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        for _, answer in zip(dispatches, self._answers, strict=True):
            yield answer

    def close(self) -> None:
        pass


class OneRound:
    """One round of a small fleet, its honest answers, and what it ends in without the victim."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.start, present = experiment.start, experiment.present(0)
        cohort = experiment.cohort(0, present)
        plans = [experiment.plan(self.start, client, present) for client in cohort]
        self._honest = [self._answer(plan) for plan in plans]
        self.scene = Scene(
            plan=plans[VICTIM],
            data=self._honest[VICTIM],
            other=self._honest[0],
            layout=experiment.layout,
            answer=self._answer,
        )
        self.without = self.ends(Failure("asleep"))[0]

    def _answer(self, plan: RoundPlan) -> bytes:
        return self._experiment.client.answer(plan.to_bytes())

    def ends(self, answer: bytes | Failure) -> tuple[torch.Tensor, dict[str, Any]]:
        """The model after the round and its line, with this answer of the victim."""
        answers: list[bytes | Failure] = [*self._honest]
        answers[VICTIM] = answer
        state, row = one_round(self._experiment, Canned(answers), self.start, lambda *_: None)
        return state.w, row


@pytest.fixture(scope="module")
def played(tiny_folder: Path) -> OneRound:
    limits = {"max_norm": 100.0, "max_scalar": 1000.0}
    return OneRound(build_simulation(quick(tiny_folder, server=limits)))


def test_the_honest_answer_is_taken_and_changes_the_model(played: OneRound) -> None:
    w, row = played.ends(played.scene.data)
    assert row.refused == {}
    assert not torch.equal(w, played.without)
    assert not torch.equal(played.without, played.start.w)


def test_there_are_at_least_fifty_kinds() -> None:
    assert len(KINDS) >= 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_upload_is_refused_and_never_touches_the_model(
    kind: str, played: OneRound
) -> None:
    tamper, reason = KINDS[kind]
    w, row = played.ends(tamper(played.scene))
    client = played.scene.plan.client
    assert list(row.refused) == [client]
    assert re.search(reason, row.refused[client]), row.refused
    assert client not in row.answered
    assert torch.equal(w, played.without)
