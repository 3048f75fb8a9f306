"""Beta from round to round: constant as in the paper; linear, cosine and by coverage beyond it.

A schedule gives the whole path of T values at once, from T, N and K alone. Nothing is carried from
round to round, so a resumed run follows the same path, and in each round p = (1 - beta_t) u +
beta_t r is an exact policy of the paper. To add one, list it in ``SCHEDULES``; its fields are the
options of ``DimensionAware`` that it takes.

>>> LinearPath(0.0, 0.5).path(rounds=3, clients=30, cohort=6).tolist()
[0.0, 0.25, 0.5]
"""

from collections.abc import Hashable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hofl.core.errors import HoflError
from hofl.sampling.water_filling import fill

HIGHEST = 0.999
"""The coverage schedule never goes higher: no client's share falls below a thousandth of 1/N."""


class Schedule(Hashable, Protocol):
    """The path beta_0 ... beta_{T-1}; a schedule is a value, compared and hashed as one."""

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """T, N, K -> beta of every round, [T], in [0, 1)."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same beta in every round, as in the paper."""

    beta: float

    def __post_init__(self) -> None:
        _check(beta=self.beta)

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """Return T equal values."""
        return np.full(rounds, self.beta, dtype=np.float64)


@dataclass(frozen=True)
class LinearPath:
    """From ``beta`` in the first round to ``beta_end`` in the last, in equal steps."""

    beta: float
    beta_end: float

    def __post_init__(self) -> None:
        _check(beta=self.beta, beta_end=self.beta_end)

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """Return a straight line."""
        return self.beta + (self.beta_end - self.beta) * _progress(rounds)


@dataclass(frozen=True)
class Cosine:
    """From ``beta`` to ``beta_end`` along half a cosine: slow at both ends."""

    beta: float
    beta_end: float

    def __post_init__(self) -> None:
        _check(beta=self.beta, beta_end=self.beta_end)

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """Return half a period."""
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
        _check(beta=self.beta, beta_end=self.beta_end)
        if not 0 <= self.min_participations < np.inf:
            raise HoflError(
                "min_participations must be finite and not negative, got "
                f"{self.min_participations}."
            )

    def path(self, rounds: int, clients: int, cohort: int) -> np.ndarray:
        """Return the line at the level of the budget."""
        uniform = cohort * rounds / clients
        if self.min_participations > uniform:
            raise HoflError(
                f"min_participations {self.min_participations:g} cannot be met: even uniform "
                f"sampling expects only KT/N = {uniform:g} per client. Lower it or add rounds."
            )
        line = LinearPath(self.beta, self.beta_end).path(rounds, clients, cohort)
        budget = rounds - self.min_participations * clients / cohort  # the sum of beta_t
        return fill(line, 0.0, HIGHEST, min(budget, HIGHEST * rounds))


SCHEDULES: dict[str, type[Any]] = {
    "constant": Constant,
    "linear": LinearPath,
    "cosine": Cosine,
    "coverage": Coverage,
}
"""Schedules by the name that ``beta_schedule`` takes."""


def schedule_from(
    name: str, beta: float, beta_end: float | None, min_participations: float | None
) -> Schedule:
    """Make the schedule of this name from the options it takes; a path without an end is flat."""
    if name not in SCHEDULES:
        raise HoflError(f"unknown beta_schedule {name!r}: choose one of {', '.join(SCHEDULES)}.")
    options = {"beta": beta, "beta_end": beta_end, "min_participations": min_participations}
    taken = {key: [option.name for option in fields(kind)] for key, kind in SCHEDULES.items()}
    for key, value in options.items():
        if value is not None and key not in taken[name]:
            takers = " or ".join(other for other in SCHEDULES if key in taken[other])
            raise HoflError(f"{key} needs beta_schedule {takers}, not {name}.")
    options["beta_end"] = beta if beta_end is None else beta_end
    missing = [key for key in taken[name] if options[key] is None]
    if missing:
        raise HoflError(f"beta_schedule {name} needs {missing[0]}.")
    schedule: Schedule = SCHEDULES[name](**{key: options[key] for key in taken[name]})
    return schedule


@lru_cache(maxsize=64)
def _path(schedule: Schedule, rounds: int, clients: int, cohort: int) -> tuple[float, ...]:
    return tuple(schedule.path(rounds, clients, cohort).tolist())


def beta_at(schedule: Schedule, round_number: int, rounds: int, clients: int, cohort: int) -> float:
    """Return beta_t; after the last round, the last round's."""
    return _path(schedule, rounds, clients, cohort)[min(round_number, rounds - 1)]


def _progress(rounds: int) -> np.ndarray:
    """0 in the first round, 1 in the last; a single round is a first one."""
    return np.arange(rounds) / max(rounds - 1, 1)


def _check(**betas: float) -> None:
    for name, value in betas.items():
        if not 0 <= value < 1:
            raise HoflError(f"{name} must lie in [0, 1), got {value}.")
