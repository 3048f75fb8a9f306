"""Learning curves of runs, from their metrics files alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.experiment.records import headline
from hofl.experiment.runs import RunDirectory
from hofl.reporting.figures import Line, Panel


@dataclass(frozen=True)
class LearningCurve:
    """One run, round by round.

    Args:
        name: the run's folder, as it was given.
        metric: the score that was followed.
        scored: (round, score) where the run was evaluated.
        losses: (round, mean training loss of the cohort).
    """

    name: str
    metric: str
    scored: tuple[tuple[int, float], ...]
    losses: tuple[tuple[int, float], ...]

    def table(self) -> list[dict[str, Any]]:
        """Return plain rows: round, score where there is one, training loss."""
        scores, losses = dict(self.scored), dict(self.losses)
        return [
            {"round": n, self.metric: scores.get(n), "train_loss": losses.get(n)}
            for n in sorted({*scores, *losses})
        ]


def learning_curve(path: Path) -> LearningCurve:
    """Read the curve of a finished or a running run."""
    records = RunDirectory.open(path).metrics()
    scored = [(record.round, headline(record.scores)) for record in records if record.scores]
    if not scored:
        raise HoflError(f"{path} has not been evaluated yet: it has no curve.")
    losses = ((record.round, record.train_loss) for record in records)
    return LearningCurve(
        name=str(path),
        metric=scored[0][1][0],
        scored=tuple((number, value) for number, (_, value) in scored),
        losses=tuple((number, loss) for number, loss in losses if loss is not None),
    )


def curve_panels(curves: Sequence[LearningCurve]) -> list[Panel]:
    """Return score and training loss against the round, side by side."""
    scores = [_line(curve.name, curve.scored, 100) for curve in curves]
    marked = [Line(line.name, line.x, line.y, mark=len(line.x) - 1) for line in scores]
    losses = [_line(curve.name, curve.losses) for curve in curves]
    return [
        Panel("test set", "round", f"{curves[0].metric} (%)", marked),
        Panel("training", "round", "mean loss of the cohort", losses),
    ]


def _line(name: str, points: Sequence[tuple[int, float]], scale: float = 1.0) -> Line:
    return Line(name, [float(x) for x, _ in points], [scale * y for _, y in points])
