"""What is counted while a run trains: an attempt's figures, failures in a row, the whole run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low
from typing import TYPE_CHECKING

import numpy as np

from hofl.engines.base import DeviceOffer
from hofl.experiment.records import Attempt, RoundRecord, RunSummary, ledger_totals
from hofl.sampling.audit import audit
from hofl.server.accounting import Ledger, releases

if TYPE_CHECKING:
    from hofl.experiment.build import Experiment
    from hofl.messages import Upload

CONVERGED = 1e-3
"""Training loss below which a client's scalars are not counted into their signal-to-noise ratio.

The gradient of a cross-entropy is at most about as large as the loss: a scalar without signal then
means that there is nothing left to learn.
"""
LONGEST_REST = 8
"""Draws that a client rests at most."""


@dataclass
class RoundTally:
    """Figures of one attempt at a round.

    Args:
        cohort: S_t.
        present: every device that was there, and what it offers; None for a simulated fleet.
        resting: clients that sit out after failures.
        waited: seconds until enough devices were there; not part of the round's own time.
        scalars: mean scalars that make the round; None where they alone do not.
        saved_bytes: by catch-ups sent in place of whole models.
    """

    cohort: list[int]
    present: Mapping[int, DeviceOffer] | None = None
    resting: list[int] = field(default_factory=list)
    waited: float = 0.0
    answered: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    raised: dict[int, int] = field(default_factory=dict)
    forward_only: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    examples: int = 0
    checks: int = 0
    signal: float = 0.0
    noise: float = 0.0
    peaks: dict[int, int] = field(default_factory=dict)
    wire: Mapping[int, dict[str, float]] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    scalars: list[list[float]] | None = None
    saved_bytes: int = 0
    bottom_signal: dict[str, float] = field(default_factory=dict)

    def again(self) -> "RoundTally":
        """Return the tally as it was when all plans had been sent."""
        return RoundTally(
            self.cohort,
            self.present,
            self.resting,
            self.waited,
            dropped=self.dropped,
            downlink_bytes=self.downlink_bytes,
            saved_bytes=self.saved_bytes,
        )

    def sent(self, whole: bytes, shorter: bytes | None = None) -> bytes:
        """Choose the smaller of a plan's two forms, and count it on its way out."""
        message = whole if shorter is None else min(whole, shorter, key=len)
        self.downlink_bytes += len(message)
        self.saved_bytes += len(whole) - len(message)
        return message

    def take(self, upload: "Upload", norm: float) -> None:
        """Add a good upload's figures, and the norm of the update rebuilt from it."""
        metrics = upload.metrics
        self.norms[upload.client] = norm
        self.answered.append(upload.client)
        if metrics.loss is not None:
            self.losses.append(metrics.loss)
        self.examples += metrics.examples
        if metrics.loss is None or metrics.loss > CONVERGED:
            self.checks += metrics.checks
            self.signal += metrics.signal
            self.noise += metrics.noise
        if metrics.peak_bytes:
            largest = max(int(metrics.peak_bytes), self.peaks.get(upload.boundary, 0))
            self.peaks[upload.boundary] = largest

    def snr(self) -> float | None:
        """Return the signal-to-noise ratio of the scalars; None without a check.

        A scalar's rounding error has variance v at mu and v / 4 at 2 mu: the squared differences
        sum to 5/4 of the noise, and the squared scalars hold the noise once beside the signal.
        """
        if not self.checks:
            return None
        return max(0.0, 1.25 * self.signal / max(self.noise, 1e-30) - 1.0)

    def attempt(self) -> Attempt:
        """Return who took part: all that is kept of an attempt that is repeated."""
        offers = self.present
        return Attempt(
            cohort=self.cohort,
            answered=self.answered,
            refused=self.refused,
            dropped=self.dropped,
            present=None if offers is None else {i: o.boundary for i, o in offers.items()},
            resting=self.resting,
            rules={i: dict(o.rule) for i, o in (offers or {}).items() if o.rule},
        )

    def record(
        self,
        round_number: int,
        seconds: float,
        repeats: Sequence[Attempt] = (),
        lost: Sequence[Sequence[int]] = (),
    ) -> RoundRecord:
        """Return the round's record, with the attempts before this one."""
        return RoundRecord(
            **vars(self.attempt()),
            round=round_number,
            repeats=list(repeats),
            lost=[list(asked) for asked in lost],
            raised=self.raised,
            forward_only=self.forward_only,
            train_loss=sum(self.losses) / len(self.losses) if self.losses else None,
            uplink_bytes=self.uplink_bytes,
            downlink_bytes=self.downlink_bytes,
            seconds=round(seconds - self.waited, 3),
            zo_snr=self.snr(),
            examples=self.examples,
            peak_bytes=max(self.peaks.values(), default=None),
            peak_by_boundary=self.peaks,
            waited=None if self.present is None else round(self.waited, 3),
            wire=dict(self.wire),
            norm=median_low(self.norms.values()) if self.norms else None,
            scalars=self.scalars,
            downlink_whole=self.downlink_bytes + self.saved_bytes if self.saved_bytes else None,
            bottom_signal=self.bottom_signal,
        )


class Health:
    """Failures in a row of every client that has any.

    After f failures in a row a client rests for 2^(f-2) draws, at most 8; the first failure costs
    nothing, a good answer clears the count. All of it follows from the recorded rounds, so a
    resumed run rests the same clients.

    >>> health = Health()
    >>> for _ in range(3):
    ...     health.note([0], [7])
    >>> health.resting(), health.note([0], []), health.note([0], []), health.resting()
    ([7], None, None, [])
    """

    def __init__(self) -> None:
        self._draws = 0
        self._failures: dict[int, int] = {}
        self._back: dict[int, int] = {}

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> "Health":
        """Return the state after these rounds."""
        health = cls()
        for record in records:
            for attempt in record.attempts:
                health.note(attempt.answered, attempt.refused)
        return health

    def note(self, answered: Iterable[int], refused: Iterable[int]) -> None:
        """Take in one draw: who answered well, and who did not."""
        self._draws += 1
        for client in answered:
            self._failures.pop(client, None)
            self._back.pop(client, None)
        for client in refused:
            failures = self._failures[client] = self._failures.get(client, 0) + 1
            if failures > 1:
                self._back[client] = self._draws + min(2 ** (failures - 2), LONGEST_REST)

    def resting(self) -> list[int]:
        """Return who sits out the next draw."""
        return sorted(client for client, back in self._back.items() if back > self._draws)


def ledger_of(experiment: "Experiment", records: Sequence[RoundRecord]) -> Ledger | None:
    """Return what the rounds so far have revealed of every device; None without privacy."""
    if experiment.privacy is None:
        return None
    noise, delta = experiment.privacy.noise, experiment.config.privacy.delta
    ledger = Ledger(noise, delta)
    for record in records:
        ledger.note(released(experiment, record))
    return ledger


def released(experiment: "Experiment", record: RoundRecord) -> Counter[int]:
    """Count what each client that was asked in a round may have released, by its own rule."""
    counts: Counter[int] = Counter()
    for attempt in record.attempts:
        for client in attempt.asked:
            counts[client] += releases(experiment.rule_in(attempt, record.round - 1, client))
    for client in (client for asked in record.lost for client in asked):
        # Which rule a lost plan had is not recorded: the one that releases more.
        last = experiment.rule_in(record, record.round - 1, client)
        counts[client] += max(map(releases, (last, experiment.method.local)))
    return counts


def summarise(experiment: "Experiment", records: Sequence[RoundRecord]) -> RunSummary:
    """Return the totals over all rounds; the first record is the start."""
    trained = records[1:]
    ledger = ledger_of(experiment, records)  # the start, too: what forgotten rounds revealed
    peaks: dict[int, int] = {}
    for record in trained:
        for boundary, peak in record.peak_by_boundary.items():
            peaks[boundary] = max(peak, peaks.get(boundary, 0))
    ratios = [record.zo_snr for record in trained if record.zo_snr is not None]
    return RunSummary(
        method=experiment.config.method.name,
        model=experiment.config.model.name,
        task=experiment.config.task.name,
        rounds=len(trained),
        initial=records[0].scores,
        final=trained[-1].scores,
        uplink_bytes=sum(record.uplink_bytes for record in trained),
        downlink_bytes=sum(record.downlink_bytes for record in trained),
        peak_bytes=max(peaks.values(), default=None),
        peak_by_boundary=dict(sorted(peaks.items())),
        zo_snr=median_low(ratios) if ratios else None,
        seconds=round(sum(record.seconds for record in trained), 3),
        eval_seconds=round(sum(record.eval_seconds or 0.0 for record in records), 3),
        trainable=experiment.layout.size,
        blocks=experiment.layout.num_blocks,
        audit=audit(drawn_shares(experiment, trained)).summary(),
        wire=on_the_wire(trained),
        epsilon={} if ledger is None else ledger.summary(),
        bottom_signal=mean_signal(trained),
        stopped=trained[-1].stopped,
        ledger=ledger_totals(trained),
        server_peak_bytes=max((r.server_peak_bytes or 0 for r in trained), default=0) or None,
    )


def mean_signal(records: Iterable[RoundRecord]) -> dict[str, float]:
    """Return the mean over rounds of every bottom rule's share of signal: one round's is noisy."""
    shares: dict[str, list[float]] = {}
    for record in records:
        for rule, share in record.bottom_signal.items():
            shares.setdefault(rule, []).append(share)
    return {rule: fmean(values) for rule, values in shares.items()}


def on_the_wire(records: Iterable[RoundRecord]) -> dict[str, int]:
    """Return bytes of all rounds and devices, down and up; empty without a network.

    ``plan`` and ``upload`` are the algorithm's own, ``down`` and ``up`` the messages around them.
    """
    totals: Counter[str] = Counter()
    for record in records:
        for sizes in record.wire.values():
            totals.update({name: int(size) for name, size in sizes.items() if name != "seconds"})
    return dict(totals)


def drawn_shares(
    experiment: "Experiment", records: Sequence[RoundRecord]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield every cohort with the shares it was drawn from, zero for absent clients, [N]."""
    joined = [client + 1 for record in records for client in record.present or ()]
    known = max(experiment.config.fleet.clients, *joined, 0)
    for record in records:
        if record.repaired:
            continue
        t, there, offers = record.round - 1, record.present, None
        if there is not None:
            rules = record.rules
            offers = {i: DeviceOffer(b, rule=rules.get(i, {})) for i, b in there.items()}
        present = experiment.present(t, offers).without(record.resting)
        shares = np.zeros(known)
        shares[present.clients] = experiment.marginals(t, present)
        yield record.cohort, shares
