"""What a tracker is, which there are, and the observer that passes a run's rounds on to them.

A tracker is chosen in the configuration: ``tracking.to=tensorboard,mlflow``. Its library is
optional, and imported by the one module that the table below names, when a run starts.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError, reason_of
from hofl.core.parts import Maker

IDENTITIES = "tracking.json"
Observer = Callable[[str, Mapping[str, Any]], None]
"""Called as ``observe(event, facts)``, see ``hofl.experiment.rounds``."""


class Tracker(Protocol):
    """Writes one run's figures to where its library keeps them."""

    def start(self, settings: Mapping[str, Any], reached: int) -> None:
        """Open or reopen the run: its configuration by dotted keys, and the round it has reached.

        What the tracker holds of later rounds is void: they are run again.
        """

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Add the figures of a round; that of round ``reached`` may come twice."""

    def close(self, totals: Mapping[str, float] | None) -> None:
        """End with the totals of a finished run; None for one that was stopped."""


@dataclass(frozen=True)
class Entry:
    """A tracker that can be chosen.

    Args:
        make: called with the run's folder.
        extra: of hofl, which installs its library.
    """

    make: Maker
    extra: str = ""


TRACKERS: dict[str, Entry] = {
    "tensorboard": Entry("hofl.tracking.tensorboard:TensorBoard", "tensorboard"),
    "wandb": Entry("hofl.tracking.wandb:WeightsAndBiases", "wandb"),
    "mlflow": Entry("hofl.tracking.mlflow:MLflow", "mlflow"),
}
"""By the name in ``tracking.to``."""
FIGURES = (
    "train_loss", "uplink_bytes", "downlink_bytes", "seconds", "eval_seconds", "waited", "examples",
    "peak_bytes", "zo_snr", "update_norm", "distance", "norm",
)  # fmt: skip
"""Of a round, numbers that are passed on as they are."""
GROUPS = ("eval", "bottom_signal")
"""Of a round, tables of numbers: ``eval/accuracy``."""
COUNTED = ("cohort", "answered", "refused", "dropped")
"""Of a round, lists of clients: how many they are."""


def makers(names: Sequence[str]) -> dict[str, Callable[[Path], Tracker]]:
    """Return what makes these trackers, with their libraries loaded.

    Raises:
        HoflError: a name is unknown, or a library is not installed.
    """
    chosen: dict[str, Callable[[Path], Tracker]] = {}
    for name in names:
        if name not in TRACKERS:
            raise HoflError(f"tracking.to has {name!r}: allowed are {', '.join(TRACKERS)}.")
        entry = TRACKERS[name]
        try:
            chosen[name] = resolve_name(entry.make) if isinstance(entry.make, str) else entry.make
        except ImportError as error:
            advice = f": run pip install 'hofl[{entry.extra}]'" if entry.extra else ""
            raise HoflError(
                f"tracking.to has {name!r}, whose library cannot be loaded "
                f"({reason_of(error)}){advice}."
            ) from None
    return chosen


def figures(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round's line in ``metrics.jsonl``, or of a summary, by name.

    >>> figures({"train_loss": 0.5, "zo_snr": None, "answered": [4, 7], "eval": {"f1": 0.25}})
    {'train_loss': 0.5, 'answered': 2.0, 'eval/f1': 0.25}
    """
    values: dict[str, Any] = {name: facts.get(name) for name in FIGURES}
    values |= {name: len(facts[name]) for name in COUNTED if name in facts}
    for group in GROUPS:
        values |= _leaves(facts.get(group, {}), f"{group}/")
    return {name: float(value) for name, value in values.items() if _is_number(value)}


def _leaves(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in table.items():
        inner = isinstance(value, Mapping)
        leaves |= _leaves(value, f"{prefix}{name}/") if inner else {prefix + name: value}
    return leaves


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextmanager
def tracked(
    names: Sequence[str],
    run: Path,
    settings: Mapping[str, Any],
    line_of: Callable[[int], Mapping[str, Any]],
    observe: Observer,
) -> Iterator[Observer]:
    """Open trackers; inside, the observer passes rounds on to them and every event to ``observe``.

    A tracker that fails is left out from then on, and ``observe`` hears of it as the event
    ``tracker``: training is worth more than its picture.

    Args:
        names: of the trackers.
        run: the run's folder.
        settings: the run's configuration by dotted keys.
        line_of: returns the recorded line of a round: a kill may have come before it was tracked.
        observe: gets every event.
    """
    opened = {name: make(run) for name, make in makers(names).items()}
    totals: dict[str, float] = {}

    def each(action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(opened.items()):
            try:
                action(tracker)
            except Exception as error:  # whatever a library may raise
                del opened[name]
                observe("tracker", {"name": name, "reason": reason_of(error)})

    def note(event: str, facts: Mapping[str, Any]) -> None:
        if event == "start":
            reached = facts["round"]
            each(lambda tracker: tracker.start(settings, reached))
            each(lambda tracker: tracker.log(reached, figures(line_of(reached))))
        elif event == "round":
            each(lambda tracker: tracker.log(facts["round"], figures(facts)))
        elif event == "end":
            totals.update({f"total/{n}": v for n, v in figures(facts).items()})
            totals.update(
                {f"final/{n}": float(v) for n, v in facts["final"].items() if _is_number(v)}
            )
        observe(event, facts)

    try:
        yield note
    finally:
        each(lambda tracker: tracker.close(totals or None))


def kept_identity(run: Path, tracker: str, make: Callable[[], str]) -> str:
    """Return the identity that a tracker gave a run, made when it has none yet.

    It is kept in RUN/tracking.json, so that a resumed run keeps its name.
    """
    file = run / IDENTITIES
    try:
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none yet, or damaged: the run gets new ones
        known = {}
    if not isinstance(known.get(tracker), str):
        known[tracker] = make()
        write_whole(file, json.dumps(known) + "\n")
    return str(known[tracker])
