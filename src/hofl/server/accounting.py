"""Privacy accounting: epsilon at a stated delta, for what every device has uploaded so far.

The unit is one device's whole data: were it replaced, what the server has received would be about
as likely. Every participation that was asked for counts, answered or not, and every release of a
participation counts as one Gaussian mechanism of the plan's noise multiplier. They compose
adaptively; the accounting is that of the ``dp-accounting`` library, in Renyi divergences.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from hofl.core.errors import HoflError
from hofl.rules import LocalRule


def releases(rule: LocalRule) -> int:
    """Count the releases of one participation: scalars E times, and the difference once.

    An upper bound: at b = 0 there are no scalars, at b = L no difference.
    """
    return 1 + (rule.local_steps if rule.traits.sends_scalars else 0)


@cache
def epsilon(noise: float, count: int, delta: float) -> float:
    """Return epsilon after ``count`` Gaussian releases."""
    return composed({noise: count}, delta)


def composed(counts: Mapping[float, int], delta: float) -> float:
    """Return epsilon after Gaussian releases, counted by their noise multipliers."""
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ModuleNotFoundError:
        raise HoflError("privacy needs an accountant: pip install 'hofl[privacy]'.") from None
    if not any(counts.values()):
        return 0.0
    accountant = RdpAccountant()
    for noise, count in counts.items():
        accountant.compose(GaussianDpEvent(noise), count)
    return float(accountant.get_epsilon(delta))


class Ledger:
    """The releases of every device, and the epsilon they amount to.

    Args:
        noise: z.
        delta: for which epsilon is stated.
    """

    def __init__(self, noise: float, delta: float) -> None:
        self._noise, self._delta = noise, delta
        self._released: Counter[int] = Counter()

    def note(self, released: Mapping[int, int]) -> dict[int, float]:
        """Take in a round's releases by client; return epsilon so far of each of them."""
        self._released.update(released)
        return {client: self.spent(client) for client in sorted(released)}

    def spent(self, client: int) -> float:
        """Return epsilon of one device so far."""
        return epsilon(self._noise, self._released[client], self._delta)

    def summary(self) -> dict[str, Any]:
        """Return the privacy part of ``summary.json``."""
        per_client = {str(client): self.spent(client) for client in sorted(self._released)}
        return {
            "delta": self._delta,
            "largest": max(per_client.values(), default=0.0),
            "clients": per_client,
        }
