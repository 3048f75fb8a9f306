"""The loop of rounds, the same for every engine: draw, plan, gather, check, rebuild, average."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hofl.core.durable import PARTIAL, put_in_place
from hofl.core.errors import HoflError
from hofl.engines.base import Engine, RoundLost
from hofl.evaluation.clients import evaluate_clients
from hofl.evaluation.scores import evaluate
from hofl.experiment.attempt import History, one_attempt
from hofl.experiment.build import Experiment
from hofl.experiment.card import card_of
from hofl.experiment.checkpoint import load_state, prune, save_state
from hofl.experiment.divergence import Divergence, moved
from hofl.experiment.records import Attempt, RoundRecord, RunSummary, Scores
from hofl.experiment.runs import RunDirectory
from hofl.experiment.tally import ledger_of, released, summarise
from hofl.models.adapters import save_adapter
from hofl.server.state import ServerState

LOSSES = 20
"""Losses of a round by the engine, after which something is wrong that repeating does not cure."""
Observer = Callable[[str, Mapping[str, Any]], None]
"""Called as ``observe(event, facts)`` while a run proceeds, for displays. Facts are plain values:

``plan``        boundaries were chosen for memory budgets: what ``plan.json`` says
``start``       training starts or resumes: ``round`` reached, ``rounds`` to reach, ``scores`` of
                round 0, ``note`` about the data (or "")
``client``      a client's answer arrived: ``client``, and ``number`` and ``of``, its place
                in the attempt
``lost``        the engine lost an attempt, which is repeated: ``round``, ``reason``
``waiting``     the engine waits for devices or answers; comes again and again
``evaluation``  examples are being scored: ``done``, ``of``
``round``       a round was recorded: its line in ``metrics.jsonl`` (``RoundRecord.to_json``)
``device``      devices of a network come, go or fail: ``text`` for people
``end``         the run is finished: what ``summary.json`` says (``RunSummary.to_json``)

An observer that raises stops the run as a kill would: it can be resumed.
"""


def run_rounds(
    experiment: Experiment, engine: Engine, run: RunDirectory, observe: Observer
) -> RunSummary:
    """Train from the latest checkpoint (or the start) to the end, and return the summary."""
    state = train_until(experiment, engine, run, observe, experiment.config.rounds)
    experiment.model.split.load(state.w)
    summary = summarise(experiment, run.metrics())
    card = card_of(experiment, summary)
    fresh = run.adapter.with_name(run.adapter.name + PARTIAL)
    save_adapter(experiment.model.split.module, fresh, card.base, card.markdown())
    summary = replace(summary, adapter_sha256=put_in_place(fresh, run.adapter))
    run.write_summary(summary)
    observe("end", summary.to_json())
    return summary


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
    while state.round < last:
        before = state
        state, record = one_round(experiment, engine, before, observe, history)
        update, distance = moved(experiment.start.w, before.w, state.w)
        record = replace(record, update_norm=update, distance=distance)
        if config.server.divergence:
            divergence.judge(record)
        every = config.evaluation.every
        if state.round == config.rounds or (every and state.round % every == 0):
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
    """Return the records; score again the start and the end where a repair lost their scores."""
    records = run.metrics()
    ends = {0: experiment.start, experiment.config.rounds: state}
    lost = [n for n in ends if n < len(records) and not records[n].scores]
    for number in lost:
        records[number] = scored(records[number], experiment, ends[number], observe)
    if lost:
        run.rounds.replace(records)
    return records


def scored(
    record: RoundRecord, experiment: Experiment, state: ServerState, observe: Observer
) -> RoundRecord:
    """Return the record with the scores of w_t, and how long they took."""
    began = time.perf_counter()
    scores = evaluation(experiment, state, observe)
    return replace(record, scores=scores, eval_seconds=round(time.perf_counter() - began, 3))


def evaluation(experiment: Experiment, state: ServerState, observe: Observer) -> Scores:
    """Return the scores of w_t; the end of a run sees the whole test set."""
    config, model = experiment.config, experiment.model.split
    model.load(state.w.to(model.device))

    def progress(done: int, of: int) -> None:
        observe("evaluation", {"done": done, "of": of})

    scores: dict[str, Any] = {}
    size = config.evaluation.batch_size
    if experiment.held_out is not None:
        examples, rows = experiment.held_out.examples, experiment.held_out.rows
        tiers = experiment.present(state.round).boundaries
        held_out = evaluate_clients(model, examples, rows, tiers, size, progress)
        scores = {**held_out.means(), "clients": held_out.summary()}
    if experiment.test is not None:
        chosen = None if state.round == config.rounds else experiment.curve
        scores |= evaluate(model, experiment.test, size, chosen, progress)
    return scores
