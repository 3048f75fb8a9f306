"""What happened in one round besides the model: the round's line in metrics.jsonl."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hofl.messages import Upload


@dataclass
class RoundTally:
    """Figures of one attempt at a round.

    Args:
        cohort: S_t.
        present: own boundary of every device that was there; None for a simulated fleet.
        resting: clients that sat out after failures.
        waited: seconds until enough devices were there; no part of the round's own time.
    """

    cohort: list[int]
    present: Mapping[int, int] | None = None
    resting: list[int] = field(default_factory=list)
    waited: float = 0.0
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
    wire: dict[str, dict[str, float]] = field(default_factory=dict)

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

    def attempt(self) -> dict[str, Any]:
        """Who took part: all that is kept of an attempt that was repeated."""
        found: dict[str, Any] = {
            "cohort": self.cohort,
            "answered": self.answered,
            "refused": self.refused,
        }
        if self.present is not None:
            found["present"] = {str(client): own for client, own in self.present.items()}
        if self.resting:
            found["resting"] = self.resting
        return found

    def row(self, round_number: int, seconds: float) -> dict[str, Any]:
        """The round's line in metrics.jsonl."""
        found = {
            "round": round_number,
            **self.attempt(),
            "dropped": self.dropped,
            "raised": self.raised,
            "train_loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "uplink_bytes": self.uplink_bytes,
            "downlink_bytes": self.downlink_bytes,
            "seconds": round(seconds - self.waited, 3),
            "zo_snr": self.snr(),
            "examples": self.examples,
            "peak_bytes": max(self.peaks.values(), default=0),
            "peak_by_boundary": self.peaks,
        }
        if self.present is not None:
            found |= {"waited": round(self.waited, 3), "wire": self.wire}
        return found
