"""Beta from round to round: constant as in the paper; linear, cosine and by coverage beyond it.

A schedule gives the whole path of T values at once, from T, N and K alone. Nothing is carried from
round to round, so a resumed run follows the same path, and in each round p = (1 - beta_t) u +
beta_t r is an exact policy of the paper.

>>> Linear(0.0, 0.5).path(rounds=3, clients=30, cohort=6).tolist()
[0.0, 0.25, 0.5]
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hofl.errors import HoflError
from hofl.sampling.policies import DimensionAware, Policy
from hofl.sampling.water_filling import fill

HIGHEST = 0.999
"""No schedule goes higher by itself: nobody's share of a round falls below a thousandth of 1/N."""


class Schedule(Hashable, Protocol):
    """The path beta_0 ... beta_{T-1}; a schedule is a value, compared and hashed as one."""

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """T, N, K -> beta of every round, [T], in [0, 1)."""
        ...


@dataclass(frozen=True)
class Linear:
    """From ``beta`` in the first round to ``beta_end`` in the last, in equal steps."""

    beta: float
    beta_end: float

    def __post_init__(self) -> None:
        _check_ends(self.beta, self.beta_end)

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """A straight line."""
        return self.beta + (self.beta_end - self.beta) * _progress(rounds)


@dataclass(frozen=True)
class Cosine:
    """From ``beta`` to ``beta_end`` along half a cosine: slow at both ends."""

    beta: float
    beta_end: float

    def __post_init__(self) -> None:
        _check_ends(self.beta, self.beta_end)

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """Half a period."""
        eased = (1 - np.cos(np.pi * _progress(rounds))) / 2
        return self.beta + (self.beta_end - self.beta) * eased


@dataclass(frozen=True)
class Coverage:
    """The line from ``beta`` to ``beta_end``, raised or lowered to a budget of participations.

    A client outside the preferred set is expected to take part sum_t K (1 - beta_t) / N times; the
    level of the line is such that this is ``min_participations``, or more when even beta = 0.999
    in every round gives more. With a flat line this is the paper's cap, beta = 1 - mN / (KT).

    The path is clip(line + level, 0, 0.999): of all paths with this budget the nearest to the line.
    """

    beta: float
    beta_end: float
    min_participations: float

    def __post_init__(self) -> None:
        _check_ends(self.beta, self.beta_end)
        if not 0 <= self.min_participations < np.inf:
            raise HoflError(
                "min_participations must be finite and not negative, got "
                f"{self.min_participations}."
            )

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """The line at the level of the budget."""
        uniform = cohort * rounds / clients
        if self.min_participations > uniform:
            raise HoflError(
                f"min_participations {self.min_participations:g} cannot be met: even uniform "
                f"sampling expects only KT/N = {uniform:g} per client. Lower it or add rounds."
            )
        line = Linear(self.beta, self.beta_end).path(rounds, clients, cohort)
        budget = rounds - self.min_participations * clients / cohort  # the sum of beta_t
        return fill(line, 0.0, HIGHEST, min(budget, HIGHEST * rounds))


@dataclass(frozen=True)
class Scheduled:
    """The dimension-aware policy with beta_t from a schedule."""

    schedule: Schedule

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Shares at this round's beta."""
        path = _path(self.schedule, rounds, len(scores), cohort)
        return DimensionAware(path[round_number]).marginals(scores, cohort, seed)


SCHEDULES: dict[str, type[Any]] = {"linear": Linear, "cosine": Cosine, "coverage": Coverage}
"""Besides "constant", the paper's, which is ``DimensionAware`` itself."""

OPTIONS = ("beta", "beta_schedule", "beta_end", "min_participations")


def beta_policy(
    beta: float = 0.0,
    beta_schedule: str = "constant",
    beta_end: float | None = None,
    min_participations: float | None = None,
) -> Policy:
    """The dimension-aware policy that these options describe.

    Args:
        beta: preference, or the first round's.
        beta_schedule: constant, linear, cosine or coverage.
        beta_end: the last round's preference; without it, the same as the first's.
        min_participations: m of the coverage schedule.
    """
    names = ("constant", *SCHEDULES)
    if beta_schedule not in names:
        raise HoflError(f"unknown beta_schedule {beta_schedule!r}: choose {', '.join(names)}.")
    if beta_end is not None and beta_schedule == "constant":
        raise HoflError("beta_end needs beta_schedule linear, cosine or coverage, not constant.")
    if (min_participations is not None) != (beta_schedule == "coverage"):
        raise HoflError("min_participations and beta_schedule coverage belong together.")
    if beta_schedule == "constant":
        return DimensionAware(beta)
    end = beta if beta_end is None else beta_end
    budget = () if min_participations is None else (min_participations,)
    return Scheduled(SCHEDULES[beta_schedule](beta, end, *budget))


def beta_options(policy: DimensionAware | Scheduled) -> dict[str, Any]:
    """The options that describe a policy: ``beta_policy(**beta_options(p))`` equals p."""
    if isinstance(policy, DimensionAware):
        return {"beta": policy.beta}
    for name, kind in SCHEDULES.items():
        if type(policy.schedule) is kind:
            return {"beta_schedule": name, **vars(policy.schedule)}
    raise HoflError(f"{type(policy.schedule).__name__} has no name: list it in SCHEDULES.")


def _progress(rounds: int) -> np.ndarray:
    """0 in the first round, 1 in the last; a single round is a first one."""
    return np.arange(rounds) / max(rounds - 1, 1)


def _check_ends(beta: float, beta_end: float) -> None:
    for name, value in (("beta", beta), ("beta_end", beta_end)):
        if not 0 <= value < 1:
            raise HoflError(f"{name} must lie in [0, 1), got {value}.")


@lru_cache(maxsize=16)
def _path(schedule: Schedule, rounds: int, clients: int, cohort: int) -> tuple[float, ...]:
    return tuple(schedule.path(rounds, clients, cohort).tolist())
