"""The loop of rounds, the same for every engine: draw, plan, gather, check, rebuild, average."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hofl.algorithm import reconstruct, server_round
from hofl.client import LocalClient
from hofl.engines.health import Health
from hofl.engines.summary import ledger_of, summarise
from hofl.engines.tally import RoundTally
from hofl.errors import HoflError, UploadRefused
from hofl.evaluation.clients import evaluate_clients
from hofl.evaluation.scores import evaluate
from hofl.experiment.build import Experiment
from hofl.experiment.runs import RunDirectory, ServerState
from hofl.messages import RoundPlan, Upload
from hofl.models.adapters import save_adapter
from hofl.server.aggregate import AGGREGATIONS
from hofl.server.checks import check_size, check_upload, plan_as_answered


@dataclass(frozen=True)
class Failure:
    """A client that gave no answer, and why."""

    reason: str


def attempt(client: LocalClient, plan: bytes) -> bytes | Failure:
    """A client's answer; what goes wrong on a device is its failure, not the server's."""
    try:
        return client.answer(plan)
    except (HoflError, RuntimeError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Failure(reason)


class RoundLost(Exception):
    """The engine lost its connection: nothing of the round counts, and it is run again."""

    asked: Sequence[int] = ()
    """Who may have answered all the same."""


class Engine(Protocol):
    """Brings plans to clients and their answers back."""

    def join(self) -> Mapping[int, int] | None:
        """Who is there now: own boundary by client. None is everyone the configuration knows."""
        ...

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Answers in the order of the plans, whatever order they arrive in.

        Plans are made as they are taken: an engine holds only those it is working on. A client
        that does not answer in time is a failure.

        Raises:
            RoundLost: no fault of any client; the round is to be run again.
        """
        ...

    def traffic(self) -> dict[str, dict[str, float]]:
        """Bytes on the wire and seconds in the last round, per client; empty without a wire."""
        ...

    def close(self) -> None:
        """Stop everything that was started."""
        ...


LOSSES = 20
"""Losses of a round by the engine, after which something is wrong that repeating does not cure."""
Observer = Callable[[str, dict[str, Any]], None]
"""Called with ("start" | "client" | "evaluation" | "round" | "end", facts), for displays."""


def run_rounds(
    experiment: Experiment, engine: Engine, run: RunDirectory, observe: Observer
) -> dict[str, Any]:
    """Train from the latest checkpoint (or the start) to the end; returns the summary."""
    state = train_until(experiment, engine, run, observe, experiment.config.rounds)
    experiment.model.split.load(state.w)
    save_adapter(experiment.model.split.module, run.adapter, experiment.model.reference)
    summary = summarise(experiment, run)
    run.write_summary(summary)
    observe("end", summary)
    return summary


def train_until(
    experiment: Experiment, engine: Engine, run: RunDirectory, observe: Observer, last: int
) -> ServerState:
    """Train from the latest checkpoint (or the start) up to round ``last``, checkpoint included."""
    config = experiment.config
    state = run.load_state(experiment.layout.digest)
    if state is None:
        state = ServerState(experiment.start, 0)
        run.forget_after(-1)
        row = RoundTally(cohort=[]).row(0, 0.0)
        run.record(row | timed_evaluation(experiment, state, observe))
        run.save_state(state, experiment.layout.digest)
    run.forget_after(state.round)
    observe(
        "start",
        {
            "round": state.round,
            "rounds": last,
            "rows": run.metrics(),
            "note": experiment.note,
        },
    )
    health = Health.of(run.metrics())
    ledger = ledger_of(experiment, run)
    while state.round < last:
        state, row = one_round(experiment, engine, state, observe, health)
        every = config.evaluation.every
        if state.round == config.rounds or (every and state.round % every == 0):
            row |= timed_evaluation(experiment, state, observe)
        if ledger is not None:
            row["epsilon"] = ledger.note(row)
        # Metrics first: a kill between the two lines repeats the round instead of losing its row.
        run.record(row)
        run.save_state(state, experiment.layout.digest)
        observe("round", row)
    return state


def one_round(
    experiment: Experiment,
    engine: Engine,
    state: ServerState,
    observe: Observer,
    health: Health | None = None,
) -> tuple[ServerState, dict[str, Any]]:
    """Algorithm 1, lines 4-14: one round from w_t to w_{t+1}, repeated until enough answer."""
    began, server = time.perf_counter(), experiment.config.server
    health = health or Health()
    repeats: list[dict[str, Any]] = []
    lost: list[list[int]] = []
    while len(repeats) < server.attempts:
        try:
            w, tally = one_attempt(experiment, engine, state, observe, health, len(repeats))
        except RoundLost as loss:
            lost.append(list(loss.asked))
            if len(lost) == LOSSES:
                times = f"{state.round + 1} was lost {LOSSES} times"
                raise HoflError(f"round {times}: {loss}.") from None
            observe("lost", {"round": state.round + 1, "reason": str(loss)})
            continue
        health.note(tally.answered, map(int, tally.refused))
        if not tally.refused or len(tally.answered) >= server.min_answers:
            row = tally.row(state.round + 1, time.perf_counter() - began)
            more: dict[str, Any] = {"repeats": repeats, "lost": lost}
            row |= {key: found for key, found in more.items() if found}
            return ServerState(w, state.round + 1), row
        repeats.append(tally.attempt())
    client, reason = next(iter(repeats[-1]["refused"].items()))
    raise HoflError(
        f"round {state.round + 1}: {_usable(len(repeats[-1]['answered']), server.min_answers)} "
        f"(client {client}: {reason}). "
        "Where numbers are not finite, lower method.lr; the last good round is kept."
    )


def one_attempt(
    experiment: Experiment,
    engine: Engine,
    state: ServerState,
    observe: Observer,
    health: Health,
    attempt: int,
) -> tuple[Tensor, RoundTally]:
    """Draw among those who are there, send plans, average what comes back and is good."""
    began = time.perf_counter()
    t, own, resting = state.round, engine.join(), health.resting()
    everyone = experiment.present(t, own)
    present = everyone.without(resting, experiment.config.server.min_answers)
    tally = RoundTally(experiment.cohort(t, present, attempt), own)
    tally.waited = time.perf_counter() - began
    if present is not everyone:
        tally.resting = resting
    tally.dropped = [i for i in tally.cohort if experiment.drops_out(t, i)]
    asked = [i for i in tally.cohort if i not in tally.dropped]
    plans = [experiment.plan(t, i, state.w, present) for i in asked]
    answers = engine.gather(tally.sent(plan.to_bytes()) for plan in plans)
    updates = rebuilt_updates(experiment, plans, answers, tally, observe)
    total = AGGREGATIONS[experiment.method.aggregation](experiment.layout)
    try:
        w = server_round(state.w, updates, total)
    except RoundLost as loss:
        loss.asked = asked
        raise
    tally.wire = engine.traffic()
    return w, tally


def _usable(answered: int, wanted: int) -> str:
    if not answered:
        return "no client gave a usable update"
    return f"{answered} clients gave a usable update, and server.min_answers is {wanted}"


def rebuilt_updates(
    experiment: Experiment,
    plans: Sequence[RoundPlan],
    answers: Iterator[bytes | Failure],
    tally: RoundTally,
    observe: Observer,
) -> Iterator[tuple[RoundPlan, Tensor]]:
    """Check and rebuild each answer; a bad one is noted with its reason and goes no further."""
    for plan, answer in zip(plans, answers, strict=True):
        observe("client", {"client": plan.client, "of": len(plans)})
        try:
            if isinstance(answer, Failure):
                raise UploadRefused(answer.reason)
            tally.uplink_bytes += len(answer)
            check_size(answer, plan, experiment.layout)
            upload = Upload.from_bytes(answer)
            carried_out = plan_as_answered(plan, upload, experiment.layout)
            check_upload(upload, carried_out, experiment.layout, experiment.limits)
            delta = reconstruct(carried_out, upload, experiment.layout)
        except UploadRefused as refusal:
            tally.refused[str(plan.client)] = str(refusal)
        else:
            tally.take(upload)
            if carried_out is not plan:
                tally.raised[str(plan.client)] = upload.boundary
            yield carried_out, delta


def timed_evaluation(
    experiment: Experiment, state: ServerState, observe: Observer
) -> dict[str, Any]:
    """Scores of w_t, and how long they took; the end of a run sees the whole test set."""
    began = time.perf_counter()
    config, model = experiment.config, experiment.model.split
    model.load(state.w.to(model.device))

    def progress(done: int, of: int) -> None:
        observe("evaluation", {"done": done, "of": of})

    scores: dict[str, Any] = {}
    size = config.evaluation.batch_size
    if experiment.held_out:
        held_out = evaluate_clients(
            model,
            experiment.train,
            experiment.held_out,
            experiment.boundaries(state.round),
            size,
            progress,
        )
        scores = {**held_out.means(), "clients": held_out.summary()}
    if config.evaluation.test:
        chosen = None if state.round == config.rounds else experiment.curve
        scores |= evaluate(model, experiment.test, size, chosen, progress)
    return {"eval": scores, "eval_seconds": round(time.perf_counter() - began, 3)}
