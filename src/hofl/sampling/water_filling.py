"""Water-filling: the scalar program of Section 5, solved by one multiplier.

>>> WaterFilling(weight=1.0, floor=0.0).marginals(np.array([0.0, 0.5, 9.0]), 1, seed=0).tolist()
[0.625, 0.375, 0.0]
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_cohort, check_scores


@dataclass(frozen=True)
class WaterFilling:
    """The optimum of min A ||p - u||^2 + c^T p, Eq. (14), as a policy.

    Args:
        weight: A >= 0, the price of a step away from uniform shares (2 N H_a in the paper).
        floor: epsilon in [0, 1]: every client keeps at least epsilon / N.
        costs: c, one per client; without them the scores d_ZO / q are the costs.
    """

    weight: float
    floor: float = 0.0
    costs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check(self.weight, self.floor)
        if self.costs is not None:
            check_scores(np.array(self.costs), "cost")

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Return larger shares for cheaper clients: at most 1/K, all pulled towards 1/N."""
        costs = check_scores(scores if self.costs is None else np.array(self.costs), "cost")
        if len(costs) != len(scores):
            raise HoflError(f"{len(costs)} costs were given for {len(scores)} clients.")
        return _solved(self.weight, costs.tobytes(), cohort, self.floor).copy()

    def for_clients(self, clients: np.ndarray) -> "WaterFilling":
        """Return the policy with the costs of these clients; a client without one has the mean."""
        if self.costs is None:
            return self
        given = np.array(self.costs)
        costs = np.full(max(len(given), int(clients.max()) + 1), given.mean())
        costs[: len(given)] = given
        return replace(self, costs=tuple(costs[clients].tolist()))


@lru_cache(maxsize=2)
def _solved(weight: float, costs: bytes, cohort: int, floor: float) -> np.ndarray:
    """Solve the program of a run once, not in every round."""
    return water_filling(weight, np.frombuffer(costs), cohort, floor)


def check_floor(floor: float) -> None:
    """Refuse an epsilon outside [0, 1]; every client keeps at least epsilon / N."""
    if not 0 <= floor <= 1:
        raise HoflError(f"floor (epsilon) must lie in [0, 1], got {floor}.")


def water_filling(weight: float, costs: np.ndarray, cohort: int, floor: float) -> np.ndarray:
    """Return the argmin of A ||p - u||^2 + c^T p over sum p = 1, epsilon/N <= p_i <= 1/K.

    Eq. (15): p_i = clip(1/N - (c_i + lambda) / (2A)). For A = 0 the program is linear and solved
    greedily. With K = N or epsilon = 1 only u is feasible.
    """
    _check(weight, floor)
    costs = check_scores(costs, "cost")
    clients = len(costs)
    check_cohort(cohort, clients)
    low, high = floor / clients, 1.0 / cohort
    if cohort == clients or floor == 1:
        return np.full(clients, 1.0 / clients)
    # A constant on all costs changes nothing; without the cheapest one's, tiny A stays exact.
    excess = costs - costs.min()
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = 1.0 / clients - excess / (2 * weight) if weight > 0 else None
    if wanted is None or not np.isfinite(wanted).all():  # A = 0, or too small to differ from it
        return _greedy(costs, low, high)
    return fill(wanted, low, high, 1.0)


def _check(weight: float, floor: float) -> None:
    if not 0 <= weight < np.inf:
        raise HoflError(f"weight (A) must be finite and not negative, got {weight}.")
    check_floor(floor)


def fill(wanted: np.ndarray, low: float, high: float, total: float) -> np.ndarray:
    """Return clip(wanted + level, low, high) at the level where the entries sum to ``total``.

    This is the point of the box nearest to ``wanted`` with that sum. The level is -lambda / (2A)
    of Eq. (15). Entries strictly inside share what the others leave, which removes the bisection's
    error from the sum.
    """
    # At levels of 1e16 (tiny A, large costs) a whole box fits between two floating-point numbers.
    # Relative to an entry that lies at the level, the values that matter are small.
    level = _level(wanted, low, high, total)
    wanted = wanted - wanted[np.argmin(np.abs(wanted + level - (low + high) / 2))]
    filled = np.clip(wanted + _level(wanted, low, high, total), low, high)
    inside = (filled > low) & (filled < high)
    if inside.any():
        rest = total - filled[~inside].sum()
        centred = wanted[inside] - wanted[inside].mean()
        filled[inside] = np.clip(rest / inside.sum() + centred, low, high)
    return filled


def _level(wanted: np.ndarray, low: float, high: float, total: float) -> float:
    """Find the level by bisection; the sum of the clipped entries never falls as it rises.

    The bracket is the paper's: every entry is low at its one end and high at the other.
    """
    below, above = low - wanted.max(), high - wanted.min()
    while below < (level := below / 2 + above / 2) < above:  # until no number lies between
        reached = np.clip(wanted + level, low, high).sum()
        if reached == total:
            return float(level)
        below, above = (level, above) if reached < total else (below, level)
    return float(above)


def _greedy(costs: np.ndarray, low: float, high: float) -> np.ndarray:
    """Everyone at low, then the rest of the mass to the cheapest up to high; ties share it."""
    shares = np.full(len(costs), low)
    rest = 1.0 - shares.sum()
    _, rank, sizes = np.unique(costs, return_inverse=True, return_counts=True)
    room = sizes * (high - low)  # of each group of equal costs, cheapest first
    before = np.concatenate(([0.0], np.cumsum(room)[:-1]))
    given = np.clip(rest - before, 0.0, room)
    return shares + (given / sizes)[rank]
