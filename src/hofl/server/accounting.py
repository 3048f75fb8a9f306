"""What the devices' uploads have told of them so far: epsilon at a stated delta.

The unit is one device's whole data: however it would be replaced, what the server has received is
about as likely. Every participation that was asked for counts, answered or not, and every release
of a participation counts as one Gaussian mechanism of the plan's noise multiplier. They compose
adaptively; the accounting is that of the ``dp-accounting`` library, in Renyi divergences.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hofl.errors import HoflError
from hofl.messages import LocalRule


def releases(rule: LocalRule) -> int:
    """Numbers of releases in one participation: E times scalars, and the difference.

    An upper bound: a boundary at either end leaves out one of the two.
    """
    return 1 + (rule.local_steps if rule.bottom == "zeroth-order" else 0)


@cache
def epsilon(noise: float, count: int, delta: float) -> float:
    """Epsilon after ``count`` Gaussian releases."""
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ModuleNotFoundError:
        raise HoflError("privacy needs an accountant: pip install 'hofl[privacy]'.") from None
    if not count:
        return 0.0
    accountant = RdpAccountant()
    accountant.compose(GaussianDpEvent(noise), count)
    return float(accountant.get_epsilon(delta))


class Ledger:
    """Participations of every device, from the rounds' records.

    Args:
        noise: z.
        per_round: releases in one participation.
        delta: for which epsilon is stated.
        rows: rounds recorded so far.
    """

    def __init__(
        self, noise: float, per_round: int, delta: float, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._noise, self._per_round, self._delta = noise, per_round, delta
        self._asked: Counter[int] = Counter()
        for row in rows:
            self.note(row)

    def note(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Take in a round; epsilon so far of each device that was asked in it."""
        asked = [client for client in row["cohort"] if client not in row["dropped"]]
        repeated = [client for again in row.get("repeats", ()) for client in again["cohort"]]
        repeated += [client for lost in row.get("lost", ()) for client in lost]
        self._asked.update([*asked, *repeated])
        return {str(client): self.spent(client) for client in sorted({*asked, *repeated})}

    def spent(self, client: int) -> float:
        """Epsilon of one device so far."""
        return epsilon(self._noise, self._asked[client] * self._per_round, self._delta)

    def summary(self) -> dict[str, Any]:
        """For ``summary.json``."""
        per_client = {str(client): self.spent(client) for client in sorted(self._asked)}
        return {
            "delta": self._delta,
            "largest": max(per_client.values(), default=0.0),
            "clients": per_client,
        }
