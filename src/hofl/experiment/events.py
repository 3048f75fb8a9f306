"""What a run tells its callbacks: one typed event for each of their methods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.experiment.records import RoundRecord, RunSummary, Scores


class StopTraining(HoflError):
    """Raised by a callback to end a run with the last whole round, scored and written as finished.

    A reason is its argument; ``summary.json`` says it under ``stopped``.
    """


@dataclass(frozen=True)
class Start:
    """Training starts or resumes.

    Args:
        run: the run's folder.
        round: rounds that are behind.
        rounds: to be reached.
        records: of the rounds that are behind, the start first.
        note: what the user should know about the data, or empty.
    """

    run: Path
    round: int
    rounds: int
    records: Sequence[RoundRecord]
    note: str

    @property
    def scores(self) -> Scores:
        """Scores before any training."""
        return self.records[0].scores


@dataclass(frozen=True)
class Client:
    """A client's answer arrived.

    Args:
        round: that is being trained.
        client: its number.
        number: its place in the attempt, from 1.
        of: answers that the attempt waits for.
    """

    round: int
    client: int
    number: int
    of: int


@dataclass(frozen=True)
class Evaluation:
    """The parameters after a round were scored.

    Args:
        run: the run's folder.
        round: 0 is the start, before any training.
        scores: by name.
        save: writes these parameters as an adapter into a folder, which it replaces; returns it.
    """

    run: Path
    round: int
    scores: Scores
    save: Callable[[Path], Path]


@dataclass(frozen=True)
class Round:
    """A round was recorded, and its checkpoint written.

    Args:
        run: the run's folder.
        record: its line in ``metrics.jsonl``.
    """

    run: Path
    record: RoundRecord


@dataclass(frozen=True)
class End:
    """The run is finished.

    Args:
        run: the run's folder.
        summary: what ``summary.json`` says.
    """

    run: Path
    summary: RunSummary


class Callback:
    """Watches a run: derive from it, and override what you want to hear of.

    A callback that raises stops the run as a kill would, and it can be resumed; one that raises
    ``StopTraining`` ends it.
    """

    def on_start(self, event: Start) -> None:
        """React to the start of training, or to its continuation."""

    def on_client(self, event: Client) -> None:
        """React to a client's answer."""

    def on_evaluation(self, event: Evaluation) -> None:
        """React to scores of the parameters after a round; called before its ``on_round``."""

    def on_round(self, event: Round) -> None:
        """React to a round that is recorded, with its checkpoint written."""

    def on_end(self, event: End) -> None:
        """React to the end of the run."""
