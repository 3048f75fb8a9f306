"""One attempt at a round: draw, plan, gather, check, rebuild, average, and look at the result."""

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hofl.algorithm import reconstruct, server_round
from hofl.catchup import Held, MissedRound
from hofl.core.errors import UploadRefused, reason_of
from hofl.core.secret import COHORT, RunSecret
from hofl.engines.base import Dispatch, Engine, Failure, RoundLost
from hofl.evaluation.scores import evaluate
from hofl.experiment.build import Experiment
from hofl.experiment.divergence import norm_of, scale_of
from hofl.experiment.present import Present
from hofl.experiment.records import RoundRecord
from hofl.experiment.tally import Health, RoundTally
from hofl.experiment.tasks import fixed_examples
from hofl.messages import RoundPlan, Upload
from hofl.server.aggregate import aggregation_of
from hofl.server.checks import check_size, check_upload, plan_as_answered
from hofl.server.outliers import Outliers
from hofl.server.signal import BottomSignal
from hofl.server.state import Contribution, ServerState, keeper_of

if TYPE_CHECKING:
    from hofl.experiment.rounds import Observer

LONGEST_REASON = 300
"""Characters of a refusal's reason."""
LOOK = 64
"""Test examples on which a suspicious model is looked at."""


@dataclass
class History:
    """What earlier rounds say about the next: who failed how often, which norms are usual.

    ``means`` has the mean scalars of rounds that follow from them (``hofl.catchup``).
    """

    health: Health
    outliers: Outliers
    means: dict[int, list[list[float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment, records: Iterable[RoundRecord] = ()) -> "History":
        """Return the history of these rounds."""
        records = list(records)
        norms = (record.norm for record in records if record.norm)
        most, scale = experiment.config.server.max_ratio, scale_of(experiment.start.w)
        history = cls(Health.of(records), Outliers(most, scale, norms))
        for record in records:
            history.note_means(record)
        return history

    def note_means(self, record: RoundRecord) -> None:
        """Take in the mean scalars from which a round can be repeated, if it can."""
        if record.scalars is not None:
            self.means[record.round - 1] = record.scalars

    def missed(self, since: int, until: int, secret: RunSecret) -> list[MissedRound] | None:
        """Return what rounds ``since``..until-1 did; None where means alone do not say it."""
        if not all(t in self.means for t in range(since, until)):
            return None
        keys = {t: secret.directions(t, COHORT) for t in range(since, until)}
        return [MissedRound(key, self.means[t]) for t, key in keys.items()]


@dataclass
class KeptAnswers:
    """A cohort's answers, which can be read again without asking for them again.

    They are in a temporary file: memory must not grow with the cohort.
    """

    _places: list[int | Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()

    def kept(self, answers: Iterator[bytes | Failure]) -> Iterator[bytes | Failure]:
        """Yield the answers as they come, and keep them."""
        for answer in answers:
            if isinstance(answer, Failure):
                self._places.append(answer)
            else:
                self._file.write(answer)
                self._places.append(len(answer))
            yield answer

    def again(self) -> Iterator[bytes | Failure]:
        """Yield the same answers."""
        self._file.seek(0)
        for place in self._places:
            yield place if isinstance(place, Failure) else self._file.read(place)

    def close(self) -> None:
        """Remove them."""
        self._file.close()


def one_attempt(
    experiment: Experiment,
    engine: Engine,
    state: ServerState,
    observe: "Observer",
    history: History,
    attempt: int,
) -> tuple[ServerState, RoundTally]:
    """Draw among those who are there, send plans, average what comes back and is good."""
    began = time.perf_counter()
    t, offers, resting = state.round, engine.join(), history.health.resting()
    everyone = experiment.present(t, offers)
    present = everyone.without(resting, experiment.config.server.min_answers)
    tally = RoundTally(experiment.cohort(t, present, attempt), offers)
    tally.waited = time.perf_counter() - began
    if present is not everyone:
        tally.resting = resting
    tally.dropped = [i for i in tally.cohort if experiment.drops_out(t, i, attempt)]
    asked = [i for i in tally.cohort if i not in tally.dropped]
    plans = [experiment.plan(state, i, present) for i in asked]
    held: Held | None = getattr(engine, "held", None)
    missed = partial(history.missed, until=t, secret=experiment.secret)

    def dispatched(plan: RoundPlan) -> Dispatch:
        shorter = None if held is None else held.shorter(plan, missed)
        return Dispatch(plan, tally.sent(plan.to_bytes(), shorter))

    sent = map(dispatched, plans)
    answers = KeptAnswers()
    try:
        attempted = Attempted(experiment, state, plans, present, history.outliers)
        new, tally = attempted.combined(answers.kept(engine.gather(sent)), tally, observe)
        while left_out := attempted.unsound(new, tally):
            attempted.refused |= left_out
            new, tally = attempted.combined(answers.again(), tally.again(), lambda *_: None)
    except RoundLost as loss:
        loss.asked = asked
        raise
    finally:
        answers.close()
    tally.wire = engine.traffic()
    return new, tally


@dataclass
class Attempted:
    """Plans that were sent in one attempt, and the clients refused for what their updates did."""

    experiment: Experiment
    state: ServerState
    plans: Sequence[RoundPlan]
    present: Present
    outliers: Outliers
    refused: dict[int, str] = field(default_factory=dict)

    def combined(
        self, answers: Iterator[bytes | Failure], tally: RoundTally, observe: "Observer"
    ) -> tuple[ServerState, RoundTally]:
        """Return the state with all good answers, and the tally of them."""
        method, layout = self.experiment.method, self.experiment.layout
        updates = contributions(
            self.experiment, self.plans, answers, self.present, tally, observe, self.refused
        )
        total = aggregation_of(method.aggregation, layout)
        keeper = keeper_of(method.local.directions, layout)
        new = server_round(self.state, updates, total, keeper)
        replayable = getattr(total, "replayable", None)
        tally.scalars = None if replayable is None else replayable()
        return new, tally

    def unsound(self, new: ServerState, tally: RoundTally) -> dict[int, str]:
        """Return whose updates must be left out, with the reason; empty when the state is sound."""
        excessive = self.outliers.refused(tally.norms)
        if excessive:
            return excessive
        suspects = self.outliers.suspects(tally.norms)
        if not suspects or self.experiment.test is None:
            return {}
        before, after = self._loss(self.state), self._loss(new)
        if after <= 3 * before + 1:
            return {}
        seen = f"with its update the loss rises from {before:.3g} to {after:.3g}"
        return {i: f"{seen}, and the norm of it is {tally.norms[i]:.3g}" for i in suspects}

    def _loss(self, state: ServerState) -> float:
        """Return the loss on a few test examples; infinite where it is not a number."""
        test, model = self.experiment.test, self.experiment.model.split
        assert test is not None
        model.load(state.w.to(model.device))
        size = self.experiment.config.evaluation.batch_size
        loss = evaluate(model, test, size, fixed_examples(len(test), LOOK)).get("loss", 0.0)
        return float(loss) if math.isfinite(loss) else math.inf


def contributions(
    experiment: Experiment,
    plans: Sequence[RoundPlan],
    answers: Iterator[bytes | Failure],
    present: Present,
    tally: RoundTally,
    observe: "Observer",
    refused: Mapping[int, str],
) -> Iterator[Contribution]:
    """Check and rebuild each answer; a bad one is noted with its reason and goes no further."""
    shares = experiment.marginals(plans[0].round if plans else 0, present)
    signal = BottomSignal(experiment.layout)
    for number, (plan, answer) in enumerate(zip(plans, answers, strict=True), start=1):
        facts = {"round": plan.round + 1, "client": plan.client, "number": number, "of": len(plans)}
        observe("client", facts)
        try:
            if isinstance(answer, Failure):
                raise UploadRefused(answer.reason)
            tally.uplink_bytes += len(answer)
            if plan.client in refused:
                raise UploadRefused(refused[plan.client])
            check_size(answer, plan, experiment.layout)
            upload = Upload.from_bytes(answer)
            carried_out = plan_as_answered(plan, upload, experiment.layout)
            check_upload(upload, carried_out, experiment.layout, experiment.limits)
            delta = reconstruct(carried_out, upload, experiment.layout)
        except UploadRefused as refusal:
            tally.refused[plan.client] = reason_of(refusal)[:LONGEST_REASON]
        else:
            tally.take(upload, norm_of(delta))
            if carried_out is not plan:
                tally.raised[plan.client] = upload.boundary
            if carried_out.rule != plan.rule:
                tally.forward_only.append(plan.client)
            place = present.place(plan.client)
            contribution = Contribution(
                plan=carried_out,
                upload=upload,
                delta=delta,
                share=float(shares[place]),
                clients=len(shares),
                examples=int(present.examples[place]),
                start=experiment.start.w,
            )
            signal.add(contribution)
            yield contribution
    tally.bottom_signal = signal.shares()
