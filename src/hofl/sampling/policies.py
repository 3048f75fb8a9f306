"""Sampling policies: from zeroth-order dimensions to marginals p, and a round's draw."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hofl.errors import HoflError
from hofl.randomness import Purpose, generator
from hofl.sampling.checks import check_cohort, check_scores, check_shares
from hofl.sampling.depround import depround


class Policy(Protocol):
    """A rule for the clients' shares of round t out of T.

    Shares depend on these arguments alone, never on earlier calls: a resumed run draws the same
    cohorts as an uninterrupted one.
    """

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Scores d_ZO / q [N], K, run seed, t, T -> p [N] with 0 <= p_i <= 1/K and sum 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """p_i = 1/N."""

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Everyone the same."""
        scores = check_scores(scores)
        check_cohort(cohort, len(scores))
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

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """On the line from uniform to the K least noisy clients."""
        scores = check_scores(scores)
        check_cohort(cohort, len(scores))
        u = np.full(len(scores), 1.0 / len(scores))
        if self.beta == 0 or np.ptp(scores) == 0:
            return u
        ties = generator(seed, Purpose.TIE_BREAK).permutation(len(scores))
        r = np.zeros(len(scores))
        r[np.lexsort((ties, scores))[:cohort]] = 1.0 / cohort
        return (1 - self.beta) * u + self.beta * r


def draw_cohort(
    p: np.ndarray, cohort: int, seed: int, round_number: int, attempt: int = 0
) -> list[int]:
    """S_t = DepRound(K p): the clients of round t, ascending; another draw for every attempt."""
    x = np.clip(cohort * check_shares(p, cohort), 0.0, 1.0)
    return depround(x, generator(seed, Purpose.COHORT, round_number, attempt)).tolist()
