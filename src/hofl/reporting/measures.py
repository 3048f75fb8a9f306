"""What a finished run is measured by: scores, memory, bytes, compute, time, and a target reached.

A *block pass* is one block on one training example, forward or backward. Backpropagation through a
frozen backbone takes 2L of them; blocks re-run by ``engine.checkpoint`` are not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hofl.core.sizes import show_bytes
from hofl.experiment.records import RoundRecord, headline
from hofl.methods import method
from hofl.reporting.cells import Cell
from hofl.rules import BOTTOM_RULES, ESTIMATORS, SURROGATES, LocalRule


def _probes(rule: LocalRule, b: int, blocks: int) -> int | None:
    estimator, surrogate = ESTIMATORS.get(rule.estimator.name), SURROGATES.get(rule.surrogate.name)
    if estimator is None or surrogate is None:
        return None
    if estimator.passes is None or surrogate.reach is None:
        return None
    return estimator.passes * rule.q * surrogate.reach(b, blocks)


def block_passes(rule: LocalRule, boundary: int, blocks: int) -> int | None:
    """Return block passes of a local step on one example; None for parts not known here.

    The anchor takes b + 2(L - b); a bottom that runs backward runs its blocks again for that.
    """
    traits = BOTTOM_RULES.get(rule.bottom.name)
    if traits is None:
        return None
    more: int | None = 2 * boundary if traits.needs_backward else 0
    if traits.sends_scalars or traits.probes:
        more = _probes(rule, boundary, blocks)
    return None if more is None else 2 * blocks - boundary + more


@dataclass(frozen=True)
class Measure:
    """A number of a finished run.

    Args:
        title: for people.
        of: reads it; None where the run does not have it.
        show: writes it.
        more_is_better: which direction is better.
    """

    title: str
    of: Callable[[Cell], float | None]
    show: Callable[[float], str]
    more_is_better: bool = False


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 5400 else f"{value / 3600:.1f} h"


def _score(cell: Cell) -> float | None:
    return headline(cell.summary.final)[1] if cell.summary else None


def _final(name: str) -> Callable[[Cell], float | None]:
    """Return how to read a score of the end, which not every task has."""
    return lambda cell: cell.summary.final.get(name) if cell.summary else None


def held_out_loss(cell: Cell) -> float | None:
    """Return the mean over clients of the loss on held-out examples; None without any."""
    clients = cell.summary.final.get("clients", {}) if cell.summary else {}
    return clients.get("loss")


def boundaries_of(cell: Cell) -> np.ndarray | None:
    """Return b_i of each client under the cell's method, [N]; None where it is not known."""
    allowed, summary = cell.config.get("fleet.boundaries"), cell.summary
    if not allowed or cell.config.get("fleet.changes") or summary is None:
        return None
    blocks = summary.blocks or max(summary.peak_by_boundary, default=0)
    return method(str(cell.config["method.name"])).boundary(np.array(allowed), blocks)


def local_rule(cell: Cell) -> LocalRule:
    """Return the cell's local rule."""
    options: dict[str, object] = {}
    for key, value in cell.config.items():
        head, _, rest = key.partition(".")
        if head != "method" or rest == "name":
            continue
        table, _, option = rest.partition(".")
        if option:
            options.setdefault(table, {})[option] = value  # type: ignore[index]
        else:
            options[table] = value
    return method(str(cell.config["method.name"]), **options).local


def cohort_bytes(cell: Cell) -> float | None:
    """Return C = (1/T) sum_t sum_{i in S_t} m_i over those that answered, by measured peaks."""
    cuts = boundaries_of(cell)
    peaks = cell.summary.peak_by_boundary if cell.summary else {}
    trained = [record for record in cell.records[1:] if not record.repaired]
    if cuts is None or not peaks or not trained:
        return None
    # A boundary that took part has a measured peak; one raised for lack of memory has its own.
    used = [
        [peaks.get(record.raised.get(i, int(cuts[i]))) for i in record.answered]
        for record in trained
    ]
    if any(peak is None for cohort in used for peak in cohort):
        return None
    return float(np.mean([sum(filter(None, cohort)) for cohort in used]))


def compute(cell: Cell) -> float | None:
    """Return block passes of all training, over all clients."""
    cuts = boundaries_of(cell)
    if cuts is None or cell.summary is None or not cell.summary.blocks:
        return None
    rule, blocks = local_rule(cell), cell.summary.blocks
    total = 0.0
    for record in cell.records[1:]:
        cut = [record.raised.get(i, int(cuts[i])) for i in record.answered]
        passes = [block_passes(rule, b, blocks) for b in cut]
        known = [count for count in passes if count is not None]
        if len(known) < len(passes):
            return None
        total += record.examples * float(np.mean(known)) if known else 0.0
    return total


def _total(name: str) -> Callable[[Cell], float | None]:
    """Return how to read a figure of the summary."""
    return lambda cell: getattr(cell.summary, name) if cell.summary else None


MEASURES: Mapping[str, Measure] = {
    "score": Measure("score", _score, _percent, more_is_better=True),
    "loss": Measure("loss", _final("loss"), lambda value: f"{value:.4f}"),
    "perplexity": Measure("perplexity", _final("perplexity"), lambda value: f"{value:.2f}"),
    "rouge_l": Measure("ROUGE-L", _final("rouge_l"), _percent, more_is_better=True),
    "peak": Measure("client peak memory", _total("peak_bytes"), show_bytes),
    "cohort": Measure("cohort memory", cohort_bytes, show_bytes),
    "uplink": Measure("uplink", _total("uplink_bytes"), show_bytes),
    "downlink": Measure("downlink", _total("downlink_bytes"), show_bytes),
    "compute": Measure("block passes", compute, lambda value: f"{value:.3g}"),
    "seconds": Measure("training time", _total("seconds"), _seconds),
}
"""By key: what tables and reports show of a row."""


@dataclass(frozen=True)
class Reached:
    """When a run first reached a score: after these rounds, bytes up and seconds of training."""

    rounds: int
    uplink_bytes: int
    seconds: float


def reached(records: Sequence[RoundRecord], target: float) -> Reached | None:
    """Return when a score was first at least ``target`` where it was evaluated; None if never."""
    uplink, seconds = 0, 0.0
    for record in records:
        uplink, seconds = uplink + record.uplink_bytes, seconds + record.seconds
        if record.scores and headline(record.scores)[1] >= target:
            return Reached(record.round, uplink, seconds)
    return None
