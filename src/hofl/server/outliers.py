"""Updates out of all proportion: one of them would outweigh every other in the mean.

A norm is compared with what is usual: the median of the cohort, if it has three members or more,
and the median of recent rounds, whichever is larger. An update ``most`` times that is refused.
Whatever is usual, it is refused if it is 1e6 times the start's norm and another one is not: float32
has seven digits, beside such weights the start is a rounding error. Where nothing is usual yet, 100
times the start's norm are enough if another update is ``most`` times smaller. No honest update
comes near that, so a device that sends nothing does not shut out others.

>>> judge = Outliers(most=1e3, scale=2.0, recent=[0.1, 0.2, 0.1])
>>> judge.refused({4: 0.3, 7: 3e38})
{7: 'the norm of its update is 3e+38, where 0.1 is usual and 1e+03 times that the limit'}
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

RECENT = 5
"""Rounds over which the median is taken."""
SUSPECT = 30.0
"""Times the usual norm, from which on the model with such an update is looked at."""
LOST = 1e6
"""Times the start's norm, beyond which nothing of the start is left."""
FAR = 100.0
"""Times the start's norm, beyond which a first update is not an honest one."""


class Outliers:
    """The judge of a cohort's updates by their norms.

    Args:
        most: times the usual norm; infinite refuses nothing.
        scale: norm of the start.
        recent: median norm of each earlier round.
    """

    def __init__(self, most: float, scale: float, recent: Iterable[float] = ()) -> None:
        self._most, self._scale = most, scale
        self._recent: deque[float] = deque(maxlen=RECENT)
        for norm in recent:
            self.note(norm)

    def note(self, norm: float | None) -> None:
        """Take in the median norm of a round that was kept."""
        if norm:
            self._recent.append(norm)

    def refused(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Return the clients whose updates are refused, with the reason."""
        if self._most == math.inf:
            return {}
        usual, lost = self._usual(norms), LOST * self._scale
        least = min(norms.values(), default=0.0)
        first = math.inf if usual else max(FAR * self._scale, self._most * least)
        reasons = {}
        for client, norm in norms.items():
            seen = f"the norm of its update is {norm:.3g}, where"
            if usual and norm > self._most * usual:
                reasons[client] = f"{seen} {usual:.3g} is usual and {self._most:.3g} times that"
                reasons[client] += " the limit"
            elif norm > first or norm > lost >= least:
                reasons[client] = f"{seen} that of the start is {self._scale:.3g}"
        return reasons

    def suspects(self, norms: Mapping[int, float]) -> list[int]:
        """Return the clients whose updates are not refused, but far larger than usual.

        Where nothing is usual yet, it is the one with the largest: the model is then looked at.
        """
        usual = self._usual(norms)
        if self._most == math.inf or not any(norms.values()):
            return []
        if not usual:
            return [max(norms, key=lambda client: norms[client])]
        return [client for client, norm in norms.items() if norm > SUSPECT * usual]

    def _usual(self, norms: Mapping[int, float]) -> float:
        """Return the usual norm; 0 where nothing is known."""
        cohort = median(norms.values()) if len(norms) > 2 else 0.0
        return max(cohort, median(self._recent) if self._recent else 0.0)
