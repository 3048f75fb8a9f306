"""The loop of rounds, the same for every engine: draw, plan, gather, check, rebuild, average."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hofl.core.durable import PARTIAL, put_in_place
from hofl.core.errors import HoflError
from hofl.engines.base import Engine, RoundLost
from hofl.evaluation.clients import evaluate_clients
from hofl.evaluation.scores import Progress, evaluate
from hofl.experiment.attempt import History, one_attempt
from hofl.experiment.build import Experiment
from hofl.experiment.card import card_of
from hofl.experiment.checkpoint import load_state, prune, save_state
from hofl.experiment.divergence import Divergence, moved
from hofl.experiment.events import StopTraining
from hofl.experiment.records import Attempt, RoundRecord, RunSummary, Scores
from hofl.experiment.runs import RunDirectory
from hofl.experiment.samples import sampled
from hofl.experiment.tally import ledger_of, released, summarise
from hofl.experiment.tasks import fixed_examples
from hofl.models.adapters import save_adapter
from hofl.server.state import ServerState

LOSSES = 20
"""Losses of a round by the engine, after which something is wrong that repeating does not cure."""
Observer = Callable[[str, Mapping[str, Any]], None]
"""Called as ``observe(event, facts)`` while a run proceeds, for displays. Facts are plain values:

``plan``        boundaries were chosen for memory budgets: what ``plan.json`` says
``start``       training starts or resumes: ``round`` reached, ``rounds`` to reach, ``scores`` of
                round 0, ``note`` about the data (or "")
``client``      a client's answer arrived: ``round``, ``client``, and ``number`` and ``of``, its
                place in the attempt
``lost``        the engine lost an attempt, which is repeated: ``round``, ``reason``
``waiting``     the engine waits for devices or answers; comes again and again
``evaluation``  examples are being scored: ``done``, ``of``
``round``       a round was recorded: its line in ``metrics.jsonl`` (``RoundRecord.to_json``)
``tracker``     a tracker failed and is left out: ``name``, ``reason``
``stop``        a callback ends the run: ``round``, the last one, and ``reason``
``device``      devices of a network come, go or fail: ``text`` for people
``end``         the run is finished: what ``summary.json`` says (``RunSummary.to_json``)

An observer that raises stops the run as a kill would, and it can be resumed; one that raises
``StopTraining`` ends it (``hofl.experiment.events``, where callbacks get typed events).
"""


def run_rounds(
    experiment: Experiment, engine: Engine, run: RunDirectory, observe: Observer
) -> RunSummary:
    """Train from the latest checkpoint (or the start) to the end, and return the summary."""
    try:
        state = train_until(experiment, engine, run, observe, experiment.rounds)
    except StopTraining as stop:
        state = stopped(experiment, run, observe, stop)
    return conclude(experiment, state, run, observe)


def conclude(
    experiment: Experiment, state: ServerState, run: RunDirectory, observe: Observer
) -> RunSummary:
    """Write sample answers, adapter and summary of a run that has ended."""
    summary = summarise(experiment, run.metrics())
    samples = sampled(experiment, state, _progress(observe))
    if samples is not None:
        samples.write(run.path)
        summary = samples.added_to(summary)
    digests = save_parameters(experiment, state, summary, run.adapter)
    summary = replace(summary, adapter_sha256=digests)
    run.write_summary(summary)
    observe("end", summary.to_json())
    return summary


def save_parameters(
    experiment: Experiment, state: ServerState, summary: RunSummary, folder: Path
) -> dict[str, str]:
    """Write w_t as an adapter in place of what the folder holds; return its files' digests."""
    experiment.model.split.load(state.w)
    card = card_of(experiment, summary)
    fresh = folder.with_name(folder.name + PARTIAL)
    save_adapter(experiment.model.split.module, fresh, card.base, card.markdown())
    return put_in_place(fresh, folder)


def stopped(
    experiment: Experiment, run: RunDirectory, observe: Observer, stop: StopTraining
) -> ServerState:
    """End a run with the last whole round, scored on the whole test set; return its state."""
    state = load_state(run, experiment.layout.digest)
    if state is None or not state.round:
        raise stop
    reason = str(stop) or "a callback ended it"
    observe("stop", {"round": state.round, "reason": reason})
    records = run.metrics()
    last = records[-1]
    if not last.scores or (experiment.curve is not None and not last.stopped):
        last = scored(last, experiment, state, observe, whole=True)
    run.rounds.replace([*records[:-1], replace(last, stopped=reason)])
    return state


def train_until(
    experiment: Experiment, engine: Engine, run: RunDirectory, observe: Observer, last: int
) -> ServerState:
    """Train from the latest checkpoint (or the start) up to round ``last``, checkpoint included."""
    config = experiment.config
    state = load_state(run, experiment.layout.digest)
    if state is None:
        state = experiment.start
        run.check_accounted(-1)
        run.rounds.start_again(scored(RoundRecord(round=0), experiment, state, observe))
        save_state(run, state, experiment.layout.digest)
    run.check_accounted(state.round)
    prune(run, state.round, config.server.keep)
    run.rounds.forget_after(state.round)
    records = rescored(run, experiment, state, observe)
    facts = {"rounds": last, "scores": records[0].scores, "note": experiment.note}
    observe("start", {"round": state.round, **facts})
    history, ledger = History.of(experiment, records), ledger_of(experiment, records)
    divergence = Divergence.of(experiment, records)
    while state.round < last and not records[-1].stopped:
        before = state
        state, record = one_round(experiment, engine, before, observe, history)
        update, distance = moved(experiment.start.w, before.w, state.w)
        record = replace(record, update_norm=update, distance=distance)
        if config.server.divergence:
            divergence.judge(record)
        if is_scored(experiment, state.round):
            record = scored(record, experiment, state, observe)
        if ledger is not None:
            record = replace(record, epsilon=ledger.note(released(experiment, record)))
        # Metrics first: a kill between the two lines repeats the round instead of losing its line.
        run.record(record)
        save_state(run, state, experiment.layout.digest, config.server.keep)
        observe("round", record.to_json())
    return state


def one_round(
    experiment: Experiment,
    engine: Engine,
    state: ServerState,
    observe: Observer,
    history: History | None = None,
) -> tuple[ServerState, RoundRecord]:
    """Algorithm 1, lines 4-14: one round from w_t to w_{t+1}, repeated until enough answer.

    With ``server.min_answers = 1`` a round in which everyone drops out (a simulated dropout, of
    which no server would hear) counts, and changes nothing; with more it is repeated like any
    other that has too few answers.
    """
    began, server = time.perf_counter(), experiment.config.server
    history = history or History.of(experiment)
    repeats: list[Attempt] = []
    lost: list[list[int]] = []
    while len(repeats) < server.attempts:
        try:
            new, tally = one_attempt(experiment, engine, state, observe, history, len(repeats))
        except RoundLost as loss:
            lost.append(list(loss.asked))
            if len(lost) == LOSSES:
                times = f"{state.round + 1} was lost {LOSSES} times"
                raise HoflError(f"round {times}: {loss}.") from None
            observe("lost", {"round": state.round + 1, "reason": str(loss)})
            continue
        history.health.note(tally.answered, tally.refused)
        nobody_left = server.min_answers == 1 and tally.dropped == tally.cohort
        if len(tally.answered) >= server.min_answers or nobody_left:
            seconds = time.perf_counter() - began
            record = tally.record(state.round + 1, seconds, repeats, lost)
            history.outliers.note(record.norm)
            history.note_means(record)
            return new, record
        repeats.append(tally.attempt())
    raise HoflError(f"round {state.round + 1}: {_too_few(repeats[-1], server.min_answers)}")


def _too_few(attempt: Attempt, wanted: int) -> str:
    count = len(attempt.answered)
    usable = "no client gave a usable update"
    if count:
        clients = "1 client" if count == 1 else f"{count} clients"
        usable = f"{clients} gave a usable update, and server.min_answers is {wanted}"
    if not attempt.refused:
        dropped = f"{len(attempt.dropped)} of {len(attempt.cohort)} dropped out"
        return f"{usable} ({dropped}). Lower fleet.dropout or server.min_answers."
    client, reason = next(iter(attempt.refused.items()))
    too_far = any(sign in reason for sign in ("finite", "the loss rises"))
    advice = "Lower the learning rate" if too_far else "Fix that and resume"
    return f"{usable} (client {client}: {reason}). {advice}; the last good round is kept."


def rescored(
    run: RunDirectory, experiment: Experiment, state: ServerState, observe: Observer
) -> list[RoundRecord]:
    """Return the records; score the start and w_t again where a repair or extension took that."""
    records = run.metrics()
    states = {0: experiment.start, state.round: state}
    due = [n for n in states if is_scored(experiment, n)]
    lost = [n for n in due if n < len(records) and not records[n].scores]
    for number in lost:
        records[number] = scored(records[number], experiment, states[number], observe)
    if lost:
        run.rounds.replace(records)
    return records


def is_scored(experiment: Experiment, number: int) -> bool:
    """Return whether w_t is scored: the start, the end, and every so often between them."""
    every = experiment.config.evaluation.every
    return number in (0, experiment.rounds) or bool(every and number % every == 0)


def scored(
    record: RoundRecord,
    experiment: Experiment,
    state: ServerState,
    observe: Observer,
    whole: bool = False,
) -> RoundRecord:
    """Return the record with the scores of w_t, and how long they took.

    The end of a run sees all test examples that are to be used; ``whole`` says so of other rounds.
    """
    began = time.perf_counter()
    whole = whole or state.round == experiment.rounds
    scores = evaluation(experiment, state, observe, whole)
    return replace(record, scores=scores, eval_seconds=round(time.perf_counter() - began, 3))


def evaluation(
    experiment: Experiment, state: ServerState, observe: Observer, whole: bool
) -> Scores:
    """Return the scores of w_t, on the ``whole`` of the test examples or on those of a curve."""
    config, model = experiment.config, experiment.model.split
    model.load(state.w.to(model.device))

    progress = _progress(observe)
    scores: dict[str, Any] = {}
    size = config.evaluation.batch_size
    if experiment.held_out is not None:
        examples, rows = experiment.held_out.examples, experiment.held_out.rows
        tiers = experiment.present(state.round).boundaries
        held_out = evaluate_clients(model, examples, rows, tiers, size, progress)
        scores = {**held_out.means(), "clients": held_out.summary()}
    if experiment.test is not None:
        tested = fixed_examples(len(experiment.test), config.evaluation.examples)
        chosen = tested if whole else experiment.curve
        scores |= evaluate(model, experiment.test, size, chosen, progress)
    return scores


def _progress(observe: Observer) -> Progress:
    return lambda done, of: observe("evaluation", {"done": done, "of": of})
