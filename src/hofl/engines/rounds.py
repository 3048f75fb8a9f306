"""The loop of rounds, the same for every engine: draw, plan, gather, check, rebuild, average."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hofl.algorithm import reconstruct, server_round
from hofl.client import LocalClient
from hofl.errors import HoflError, UploadRefused
from hofl.evaluation.clients import evaluate_clients
from hofl.evaluation.scores import evaluate
from hofl.experiment.build import Experiment
from hofl.experiment.runs import RunDirectory, ServerState
from hofl.messages import RoundPlan, Upload
from hofl.models.adapters import save_adapter
from hofl.sampling.audit import audit
from hofl.server.accounting import Ledger, releases
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


class Engine(Protocol):
    """Brings plans to clients and their answers back."""

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Answers in the order of the plans, whatever order they arrive in.

        Plans are made as they are taken: an engine holds only those it is working on.
        """
        ...

    def close(self) -> None:
        """Stop everything that was started."""
        ...


Observer = Callable[[str, dict[str, Any]], None]
"""Called with ("start" | "client" | "evaluation" | "round" | "end", facts), for displays."""


@dataclass
class RoundTally:
    """What happened in one round besides the model."""

    cohort: list[int]
    answered: list[int] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    raised: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    examples: int = 0
    checks: int = 0
    signal: float = 0.0
    noise: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)

    def sent(self, message: bytes) -> bytes:
        """Count a plan on its way out."""
        self.downlink_bytes += len(message)
        return message

    def take(self, upload: Upload) -> None:
        """Add a good upload's figures."""
        self.answered.append(upload.client)
        if upload.metrics.loss is not None:
            self.losses.append(upload.metrics.loss)
        self.examples += upload.metrics.examples
        self.checks += upload.metrics.checks
        self.signal += upload.metrics.signal
        self.noise += upload.metrics.noise
        self.peaks[str(upload.boundary)] = int(upload.metrics.peak_bytes)

    def snr(self) -> float | None:
        """Signal-to-noise ratio of the scalars; None without a check.

        A scalar's rounding error has variance v at mu and v / 4 at 2 mu: the squared differences
        sum to 5/4 of the noise, and the squared scalars hold the noise once beside the signal.
        """
        if not self.checks:
            return None
        return max(0.0, 1.25 * self.signal / max(self.noise, 1e-30) - 1.0)

    def row(self, round_number: int, seconds: float) -> dict[str, Any]:
        """The round's line in metrics.jsonl."""
        return {
            "round": round_number,
            "cohort": self.cohort,
            "answered": self.answered,
            "refused": self.refused,
            "dropped": self.dropped,
            "raised": self.raised,
            "train_loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "seconds": round(seconds, 3),
            "zo_snr": self.snr(),
            "examples": self.examples,
            "peak_bytes": max(self.peaks.values(), default=0),
            "peak_by_boundary": self.peaks,
        }


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
    ledger = ledger_of(experiment, run)
    while state.round < last:
        state, row = one_round(experiment, engine, state, observe)
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


def ledger_of(experiment: Experiment, run: RunDirectory) -> Ledger | None:
    """What the rounds so far have told of every device; None without privacy."""
    if experiment.privacy is None:
        return None
    noise, delta = experiment.privacy.noise, experiment.config.privacy.delta
    return Ledger(noise, releases(experiment.method.local), delta, run.metrics()[1:])


def one_round(
    experiment: Experiment, engine: Engine, state: ServerState, observe: Observer
) -> tuple[ServerState, dict[str, Any]]:
    """Algorithm 1, lines 4-14: one round from w_t to w_{t+1}."""
    began = time.perf_counter()
    t = state.round
    tally = RoundTally(cohort=experiment.cohort(t))
    tally.dropped = [i for i in tally.cohort if experiment.drops_out(t, i)]
    plans = [experiment.plan(t, i, state.w) for i in tally.cohort if i not in tally.dropped]
    answers = engine.gather(tally.sent(plan.to_bytes()) for plan in plans)
    updates = rebuilt_updates(experiment, plans, answers, tally, observe)
    total = AGGREGATIONS[experiment.method.aggregation](experiment.layout)
    w = server_round(state.w, updates, total)
    if tally.refused and not tally.answered:
        client, reason = next(iter(tally.refused.items()))
        raise HoflError(
            f"round {t + 1}: no client gave a usable update (client {client}: {reason}). "
            "Where numbers are not finite, lower method.lr; the last good round is kept."
        )
    return ServerState(w, t + 1), tally.row(t + 1, time.perf_counter() - began)


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


def summarise(experiment: Experiment, run: RunDirectory) -> dict[str, Any]:
    """Totals over all rounds, from the metrics file alone."""
    rows = run.metrics()
    trained = rows[1:]
    peaks = {b: peak for row in trained for b, peak in row["peak_by_boundary"].items()}
    ledger = ledger_of(experiment, run)
    drawn = ((row["cohort"], experiment.marginals(row["round"] - 1)) for row in trained)
    ratios = [row["zo_snr"] for row in trained if row["zo_snr"] is not None]
    return {
        "method": experiment.config.method.name,
        "model": experiment.config.model.name,
        "task": experiment.config.task.name,
        "rounds": len(trained),
        "initial": rows[0]["eval"],
        "final": trained[-1]["eval"],
        "uplink_bytes": sum(row["uplink_bytes"] for row in trained),
        "downlink_bytes": sum(row["downlink_bytes"] for row in trained),
        "peak_bytes": max(row["peak_bytes"] for row in trained),
        "peak_by_boundary": dict(sorted(peaks.items(), key=lambda item: int(item[0]))),
        "zo_snr": float(torch.tensor(ratios).median()) if ratios else None,
        "seconds": round(sum(row["seconds"] for row in trained), 3),
        "eval_seconds": round(sum(row.get("eval_seconds", 0.0) for row in rows), 3),
        "trainable": experiment.layout.size,
        "audit": audit(drawn).summary(),
        "adapter": run.adapter.name,
    } | ({} if ledger is None else {"epsilon": ledger.summary()})
