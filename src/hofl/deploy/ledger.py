"""A device's own count of what it has released, and the limits that its owner sets.

It holds for all runs of a device together and does not depend on what a server counts or says. A
participation is written down before anything is computed for it: a crash can only count too much.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hofl.core.durable import intact, sealed, write_whole
from hofl.core.errors import HoflError
from hofl.deploy.link import Disclosable
from hofl.messages import RoundPlan
from hofl.server.accounting import composed, releases


@dataclass(frozen=True)
class Limits:
    """How much a device may release; None is as much as it is asked for.

    Args:
        epsilon: of all participations together, at ``delta``.
        rounds: participations.
        delta: the owner's, whatever a run's configuration says.
    """

    epsilon: float | None = None
    rounds: int | None = None
    delta: float = 1e-5


class OwnLedger:
    """The participations of this device, in a file.

    Args:
        path: of the file; deleting it starts a new count, for new data.
        limits: set by the device's owner.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._rounds, self._releases = _load(path)
        if limits.epsilon is not None:
            self.spent()  # refuse now, not in a round, if there is no accountant

    def spent(self) -> float:
        """Return epsilon so far; infinite after a participation without noise."""
        return _epsilon(self._releases, self._limits.delta)

    def enter(self, plan: RoundPlan) -> None:
        """Count a participation, or refuse it; it counts from here on, whatever becomes of it."""
        noise = 0.0 if plan.privacy is None else plan.privacy.noise
        rounds = self._rounds + 1
        after = self._releases + Counter({noise: releases(plan.rule)})
        limits = self._limits
        if limits.rounds is not None and rounds > limits.rounds:
            raise Disclosable(f"this device has taken part in its {limits.rounds} rounds")
        if limits.epsilon is not None and _epsilon(after, limits.delta) > limits.epsilon:
            raise Disclosable(
                f"one more participation would exceed this device's epsilon {limits.epsilon:g}"
            )
        counts = [[noise, count] for noise, count in sorted(after.items())]
        text = json.dumps({"participations": rounds, "releases": counts})
        write_whole(self._path, sealed(text) + "\n")
        self._rounds, self._releases = rounds, after


def _load(path: Path) -> tuple[int, Counter[float]]:
    """Return participations, and releases by their noise multiplier."""
    if not path.exists():
        return 0, Counter()
    try:
        return _parsed(path.read_text())
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        raise HoflError(
            f"{path} is damaged: it counts what this device has released. Restore it, or delete it "
            "to start a new count."
        ) from None


def _parsed(text: str) -> tuple[int, Counter[float]]:
    """Refuse, by any of the errors of parsing, what this module never writes."""
    fields = json.loads(text)
    rounds, pairs = fields["participations"], fields["releases"]
    counts = Counter({float(noise): count for noise, count in pairs})
    whole = all(type(count) is int and count > 0 for count in (rounds, *counts.values()))
    # NaN and infinity would count as no release at all.
    finite = all(0 <= noise < math.inf for noise in counts)
    if not (intact(text) and whole and finite and len(counts) == len(pairs) > 0):
        raise ValueError("counts that cannot be")
    return rounds, counts


def _epsilon(counts: Counter[float], delta: float) -> float:
    return math.inf if counts[0.0] else composed(counts, delta)
