"""What a run writes down: a record of every round (metrics.jsonl) and a summary (summary.json).

The only reader and writer of their keys. Unknown keys are ignored and missing ones take their
defaults, so that runs of other versions can be read. Nothing here needs torch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

Scores = Mapping[str, Any]
"""Scores by name, with the number of examples and, under ``clients``, those of each client."""
HEADLINES = ("accuracy", "f1", "token_accuracy")
# Objects by client or by boundary: their keys are numbers here and text in JSON.
_NUMBERED = {"refused", "present", "rules", "raised", "peak_by_boundary", "wire", "epsilon"}
# Written only where there is something to say.
_OPTIONAL = {"present", "rules", "resting", "forward_only", "repeats", "lost", "waited", "wire"}
_OPTIONAL |= {"scalars", "downlink_whole", "repaired", "eval", "eval_seconds", "epsilon", "audit"}
_OPTIONAL |= {"bottom_signal", "ledger", "server_peak_bytes", "stopped"}


def headline(scores: Scores) -> tuple[str, float]:
    """Return name and value of the score that tables, curves and progress displays show.

    >>> headline({"em": 0.25, "f1": 0.5, "loss": 2.0})
    ('f1', 0.5)
    """
    name = next(name for name in HEADLINES if name in scores)
    return name, scores[name]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One draw of a round: who was in the cohort, and what became of them.

    Args:
        cohort: S_t.
        answered: clients whose upload was good.
        refused: clients without a good upload, with the reason.
        dropped: clients that dropped out before they were asked (simulated).
        present: own boundary of every device that was there; None for a simulated fleet.
        resting: clients that sat out after failures.
        rules: what the devices that were there change in the run's rule, where they change any.
    """

    cohort: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    present: dict[int, int] | None = None
    resting: list[int] = field(default_factory=list)
    rules: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def asked(self) -> list[int]:
        """Clients that were sent a plan."""
        return [client for client in self.cohort if client not in self.dropped]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the object as it is in the file."""
        return cls(**_known(cls, values, _NUMBERED))

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is in the file."""
        return _plain(vars(self))


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Attempt):
    """A round: its last attempt, the attempts before, and its figures.

    Args:
        round: its number; 0 is the start, before any training.
        repeats: earlier attempts, which had too few answers.
        lost: clients that were asked in attempts that the engine lost.
        raised: clients that had to raise their boundary, and to which.
        forward_only: those of them that could not run a block backward, and continued without.
        train_loss: mean over the clients that report one.
        uplink_bytes, downlink_bytes: serialised uploads and plans.
        seconds: without waiting for devices and without evaluation.
        zo_snr: signal-to-noise ratio of the scalars; None where it was not measured.
        examples: training examples seen.
        peak_bytes: largest measured peak of a client; None where none was measured.
        peak_by_boundary: the same by boundary.
        waited: seconds until enough devices were there; None without a network.
        wire: bytes and seconds on the network by client.
        scores: of the parameters after the round; empty where they were not evaluated.
        eval_seconds: how long that took.
        epsilon: privacy spent so far by each client that was asked.
        update_norm: ||w_t - w_{t-1}||; None at the start.
        distance: ||w_t - w_0||; None at the start.
        norm: median norm of the updates that were averaged; None without any.
        bottom_signal: share of the bottom's updates that the cohort has in common, by bottom rule.
        repaired: the line was lost, and stands for a round of which nothing more is known.
        scalars: mean scalars [E][q] from which alone the round can be repeated; None without such.
        downlink_whole: downlink_bytes if every client had been sent the whole model; None where
            that is what was done.
        stopped: why a callback ended the run after this round; None if none did.
        ledger: bytes and number of tensors by category (``hofl.twoparty.ledger``), of a split run.
        server_peak_bytes: measured peak of a split run's server; None where none was measured.
    """

    round: int
    repeats: list[Attempt] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)
    raised: dict[int, int] = field(default_factory=dict)
    forward_only: list[int] = field(default_factory=list)
    train_loss: float | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    seconds: float = 0.0
    zo_snr: float | None = None
    examples: int = 0
    peak_bytes: int | None = None
    peak_by_boundary: dict[int, int] = field(default_factory=dict)
    waited: float | None = None
    wire: dict[int, dict[str, float]] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    eval_seconds: float | None = None
    epsilon: dict[int, float] = field(default_factory=dict)
    update_norm: float | None = None
    distance: float | None = None
    norm: float | None = None
    bottom_signal: dict[str, float] = field(default_factory=dict)
    repaired: bool = False
    scalars: list[list[float]] | None = None
    downlink_whole: int | None = None
    stopped: str | None = None
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    server_peak_bytes: int | None = None

    @property
    def attempts(self) -> list[Attempt]:
        """All draws of the round in their order, lost ones left out."""
        return [*self.repeats, self]

    @property
    def participations(self) -> list[int]:
        """Everyone who was sent a plan, as often as it happened, lost attempts included."""
        lost = [client for asked in self.lost for client in asked]
        return [client for attempt in self.attempts for client in attempt.asked] + lost

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a line of metrics.jsonl.

        Raises:
            ValueError: it is not the record of a round.
        """
        if not isinstance(values, dict) or not isinstance(values.get("round"), int):
            raise ValueError("not the record of a round")
        try:
            known = _known(cls, {**values, "scores": values.get("eval", {})}, _NUMBERED)
            known["repeats"] = [Attempt.from_json(item) for item in values.get("repeats", ())]
            return cls(**known)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"not the record of a round: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl."""
        values = {"round": self.round, **vars(self)}
        values["eval"] = values.pop("scores")
        values["repeats"] = [attempt.to_json() for attempt in self.repeats]
        return _plain(values)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A finished run.

    Args:
        method, model, task: their names.
        rounds: how many were trained.
        initial, final: scores of the start and of the end.
        uplink_bytes, downlink_bytes, seconds, eval_seconds: totals over all rounds.
        peak_bytes, peak_by_boundary: largest measured peak of a client; None and empty without one.
        zo_snr: median over the rounds that measured it.
        trainable: d, number of trained parameters.
        blocks: L, blocks of the model; 0 where an earlier version did not say.
        adapter: name of the adapter's folder in the run.
        adapter_sha256: digest of each of its files.
        audit: realised against expected participations.
        wire: bytes on the network; empty without one.
        epsilon: privacy spent by each client; empty without privacy.
        bottom_signal: mean over the rounds, by bottom rule; empty where no bottom was trained.
        stopped: why a callback ended it before its last round; None if none did.
        ledger: totals by category of a split run; empty for others.
        server_peak_bytes: largest measured peak of a split run's server; None for others.
    """

    method: str
    model: str
    task: str
    rounds: int
    initial: Scores
    final: Scores
    uplink_bytes: int
    downlink_bytes: int
    peak_bytes: int | None = None
    peak_by_boundary: dict[int, int] = field(default_factory=dict)
    zo_snr: float | None = None
    seconds: float = 0.0
    eval_seconds: float = 0.0
    trainable: int = 0
    blocks: int = 0
    audit: dict[str, Any] = field(default_factory=dict)
    adapter: str = "adapter"
    adapter_sha256: dict[str, str] = field(default_factory=dict)
    wire: dict[str, int] = field(default_factory=dict)
    epsilon: dict[str, Any] = field(default_factory=dict)
    bottom_signal: dict[str, float] = field(default_factory=dict)
    stopped: str | None = None
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    server_peak_bytes: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read summary.json.

        Raises:
            ValueError: it is not the summary of a run.
        """
        try:
            return cls(**_known(cls, values, {"peak_by_boundary"}))
        except (AttributeError, TypeError) as error:
            raise ValueError(f"not the summary of a run: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return what summary.json says."""
        return _plain(vars(self))


def ledger_totals(records: Iterable[RoundRecord]) -> dict[str, dict[str, int]]:
    """Add up the ledgers of a split run's steps; empty for other runs."""
    totals: dict[str, Counter[str]] = {}
    for record in records:
        for category, entry in record.ledger.items():
            totals.setdefault(category, Counter()).update(entry)
    return {category: dict(entry) for category, entry in totals.items()}


def _known(kind: type, values: Mapping[str, Any], numbered: set[str]) -> dict[str, Any]:
    """Return those values that are fields of ``kind``, with numbers for keys where they are."""
    names = {field.name for field in fields(kind)}
    known = {name: value for name, value in values.items() if name in names}
    for name in numbered & known.keys():
        if known[name] is not None:
            known[name] = {int(key): value for key, value in known[name].items()}
    # Earlier versions wrote 0 where no peak was measured.
    if "peak_by_boundary" in known:
        known["peak_by_boundary"] = {b: x for b, x in known["peak_by_boundary"].items() if x}
        known["peak_bytes"] = known.get("peak_bytes") or None
    return known


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON will give them back, without those that say nothing."""
    plain = {
        name: value
        for name, value in values.items()
        if name not in _OPTIONAL or value not in (None, {}, [], False)
    }
    for name in _NUMBERED & plain.keys():
        plain[name] = {str(key): value for key, value in plain[name].items()}
    return plain
