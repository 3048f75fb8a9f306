"""Learning curves of runs, from their metrics files alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.errors import HoflError
from hofl.evaluation.headline import headline
from hofl.experiment.runs import RunDirectory
from hofl.report.panels import Line, Panel


@dataclass(frozen=True)
class Curve:
    """One run, round by round.

    Args:
        name: of the run's folder.
        metric: the score that was followed.
        scored: (round, score) where the run was evaluated.
        losses: (round, mean training loss of the cohort).
    """

    name: str
    metric: str
    scored: tuple[tuple[int, float], ...]
    losses: tuple[tuple[int, float], ...]


def curve(path: Path) -> Curve:
    """The curve of a finished or a running run."""
    rows = RunDirectory.open(path).metrics()
    scored = [(row["round"], headline(row["eval"])) for row in rows if row.get("eval")]
    if not scored:
        raise HoflError(f"{path} has not been evaluated yet: it has no curve.")
    trained = [(row["round"], row["train_loss"]) for row in rows]
    return Curve(
        name=path.name,
        metric=scored[0][1][0],
        scored=tuple((number, value) for number, (_, value) in scored),
        losses=tuple((number, loss) for number, loss in trained if loss is not None),
    )


def panels(curves: Sequence[Curve]) -> list[Panel]:
    """Score and training loss against the round, side by side."""
    return [
        Panel("test set", "round", f"{curves[0].metric} (%)", [_percent(one) for one in curves]),
        Panel(
            "training",
            "round",
            "mean loss of the cohort",
            [Line(one.name, *_columns(one.losses)) for one in curves],
        ),
    ]


def table(one: Curve) -> list[dict[str, Any]]:
    """Plain rows: round, score where there is one, training loss."""
    scores, losses = dict(one.scored), dict(one.losses)
    numbers = sorted({*scores, *losses})
    return [{"round": n, one.metric: scores.get(n), "train_loss": losses.get(n)} for n in numbers]


def _percent(one: Curve) -> Line:
    x, y = _columns(one.scored)
    return Line(one.name, x, [100 * value for value in y], mark=len(x) - 1)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in points], [y for _, y in points]
