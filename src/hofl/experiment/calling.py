"""Callbacks as an observer of a run: plain facts become typed events."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.experiment.checkpoint import load_state
from hofl.experiment.events import (
    Callback,
    Client,
    End,
    Evaluation,
    Round,
    Start,
    StopTraining,
)
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.rounds import Observer, save_parameters
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tally import summarise


def calling(
    callbacks: Sequence[Callback], experiment: Experiment, run: RunDirectory, observe: Observer
) -> Observer:
    """Return an observer that passes all on to ``observe``, and then calls the callbacks."""

    def save(folder: Path) -> Path:
        """Write the parameters of the latest checkpoint, which are those just scored."""
        state = load_state(run, experiment.layout.digest)
        if state is None or not state.round:
            raise HoflError("there is nothing to save before the first round.")
        save_parameters(experiment, state, summarise(experiment, run.metrics()), Path(folder))
        return Path(folder)

    def calls(event: str, facts: Mapping[str, Any]) -> list[Callable[[Callback], None]]:
        """Return what to call each callback with, one after the other."""
        match event:
            case "start":
                begin = Start(
                    run.path, facts["round"], facts["rounds"], run.metrics(), facts["note"]
                )
                first = Evaluation(run.path, 0, begin.scores, save)
                fresh = [] if begin.round else [lambda callback: callback.on_evaluation(first)]
                return [lambda callback: callback.on_start(begin), *fresh]
            case "client":
                return [lambda callback: callback.on_client(Client(**facts))]
            case "round":
                record = RoundRecord.from_json(facts)
                scored = Evaluation(run.path, record.round, record.scores, save)
                judged = [lambda callback: callback.on_evaluation(scored)] if record.scores else []
                return [*judged, lambda callback: callback.on_round(Round(run.path, record))]
            case "end":
                return [
                    lambda callback: callback.on_end(End(run.path, RunSummary.from_json(facts)))
                ]
        return []

    def call(event: str, facts: Mapping[str, Any]) -> None:
        observe(event, facts)
        stop: StopTraining | None = None
        for method in calls(event, facts):
            for callback in callbacks:
                try:
                    method(callback)
                except StopTraining as wanted:  # the others hear of the event all the same
                    stop = stop or wanted
        if stop is not None:
            raise stop

    return call
