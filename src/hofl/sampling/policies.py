"""Sampling policies: from zeroth-order dimensions to marginals p, and a round's draw."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hofl.errors import HoflError
from hofl.randomness import Purpose, generator
from hofl.sampling.depround import depround


class Policy(Protocol):
    """A rule for the clients' long-run shares."""

    def marginals(self, scores: np.ndarray, cohort: int, seed: int) -> np.ndarray:
        """Scores d_ZO / q [N], K, run seed -> p [N] with 0 <= p_i <= 1/K and sum 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """p_i = 1/N."""

    def marginals(self, scores: np.ndarray, cohort: int, seed: int) -> np.ndarray:
        """Everyone the same."""
        return np.full(len(scores), 1.0 / len(scores))


@dataclass(frozen=True)
class DimensionAware:
    """p = (1 - beta) u + beta r, Eq. (16): r puts 1/K on the K clients of smallest score.

    Ties are broken by one permutation drawn from the run's seed and kept for the whole run. When
    all scores are equal nobody is preferred, r = u.
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise HoflError(f"beta must lie in [0, 1), got {self.beta}.")

    def marginals(self, scores: np.ndarray, cohort: int, seed: int) -> np.ndarray:
        """On the line from uniform to the K least noisy clients."""
        u = np.full(len(scores), 1.0 / len(scores))
        if self.beta == 0 or np.ptp(scores) == 0:
            return u
        ties = generator(seed, Purpose.TIE_BREAK).permutation(len(scores))
        r = np.zeros(len(scores))
        r[np.lexsort((ties, scores))[:cohort]] = 1.0 / cohort
        return (1 - self.beta) * u + self.beta * r


def draw_cohort(p: np.ndarray, cohort: int, seed: int, round_number: int) -> list[int]:
    """S_t = DepRound(K p): the clients of round t, ascending."""
    rng = generator(seed, Purpose.COHORT, round_number)
    return depround(np.minimum(cohort * p, 1.0), rng).tolist()
