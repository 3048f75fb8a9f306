"""Sampling policies: from zeroth-order dimensions to marginals p, and a round's draw.

A policy is a frozen dataclass whose fields are its options. To add one, here or from outside the
package, derive it from :class:`Policy` and list it: ``POLICIES["mine"] = Mine``.

>>> policy_from("dimension-aware", beta=0.5)
DimensionAware(beta=0.5, beta_schedule='constant', beta_end=None, min_participations=None)
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from numbers import Real
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.randomness import Purpose, generator
from hofl.core.vectors import check_cohort, check_scores, check_shares, vector
from hofl.sampling.depround import depround
from hofl.sampling.schedules import Schedule, beta_at, schedule_from
from hofl.sampling.water_filling import WaterFilling


class Policy(Protocol):
    """A rule for the clients' shares of round t out of T.

    Shares depend on these arguments alone, never on earlier calls: a resumed run draws the same
    cohorts as an uninterrupted one.
    """

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Map scores d_ZO / q [N], K, fleet seed, t, T to p [N] with 0 <= p_i <= 1/K and sum 1."""
        ...

    def for_clients(self, clients: np.ndarray) -> "Policy":
        """Return the policy for the clients of these numbers, when only they can be drawn.

        Only a policy that holds values of certain clients has to change.
        """
        return self


@dataclass(frozen=True)
class Uniform(Policy):
    """p_i = 1/N."""

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Return equal shares."""
        scores = check_scores(scores)
        check_cohort(cohort, len(scores))
        return np.full(len(scores), 1.0 / len(scores))


@dataclass(frozen=True)
class DimensionAware(Policy):
    """p = (1 - beta) u + beta r, Eq. (16): r puts 1/K on the K clients of smallest score.

    Ties are broken by one permutation drawn from the fleet's seed and kept for the whole run. When
    all scores are equal nobody is preferred, r = u.

    Args:
        beta: the preference, or that of the first round.
        beta_schedule: how it changes, a key of ``hofl.sampling.schedules.SCHEDULES``.
        beta_end: the last round's preference; the first round's unless given.
        min_participations: what the coverage schedule keeps for everyone.
    """

    beta: float
    beta_schedule: str = "constant"
    beta_end: float | None = None
    min_participations: float | None = None

    def __post_init__(self) -> None:
        self.schedule  # noqa: B018 -- refuses options that do not belong together

    @property
    def schedule(self) -> Schedule:
        """The path of beta."""
        return schedule_from(self.beta_schedule, self.beta, self.beta_end, self.min_participations)

    def marginals(
        self, scores: np.ndarray, cohort: int, seed: int, round_number: int = 0, rounds: int = 1
    ) -> np.ndarray:
        """Return shares on the line from uniform to the K least noisy clients."""
        scores = check_scores(scores)
        check_cohort(cohort, len(scores))
        beta = beta_at(self.schedule, round_number, rounds, len(scores), cohort)
        u = np.full(len(scores), 1.0 / len(scores))
        if beta == 0 or np.ptp(scores) == 0:
            return u
        r = np.zeros(len(scores))
        r[_preferred(scores.tobytes(), cohort, seed)] = 1.0 / cohort
        return (1 - beta) * u + beta * r


@lru_cache(maxsize=2)
def _preferred(scores: bytes, cohort: int, seed: int) -> np.ndarray:
    """Return the K clients of smallest score; a run ranks a million once, not in every round."""
    values = np.frombuffer(scores)
    ties = generator(seed, Purpose.TIE_BREAK).permutation(len(values))
    return np.lexsort((ties, values))[:cohort]


def draw_cohort(
    p: np.ndarray, cohort: int, seed: int, round_number: int, attempt: int = 0
) -> list[int]:
    """Draw S_t = DepRound(K p), the clients of round t, ascending; attempts differ."""
    check_cohort(cohort, len(vector(p, "shares")))
    p = check_shares(p, 1 / cohort, f"[0, 1/K] = [0, {1 / cohort:.6g}]")
    x = np.clip(cohort * p, 0.0, 1.0)
    return depround(x, generator(seed, Purpose.COHORT, round_number, attempt)).tolist()


POLICIES: dict[str, type[Policy]] = {
    "uniform": Uniform,
    "dimension-aware": DimensionAware,
    "water-filling": WaterFilling,
}
"""Policies by the name that configurations use."""


def policy_from(name: str, **options: Any) -> Policy:
    """Make the policy of this name; ``options`` are plain values, as a configuration holds them."""
    if name not in list(POLICIES):  # compared, not hashed: a configuration may hold anything
        raise HoflError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}.")
    known = {option.name: option for option in _options(POLICIES[name])}
    foreign = sorted(set(options) - set(known))
    if foreign:
        raise HoflError(
            f"policy {name!r} has no option {foreign[0]!r}: it takes "
            f"{', '.join(known) or 'no options'}. In a run, the change "
            f"~method.policy.{foreign[0]} removes it from the configuration."
        )
    missing = [key for key, option in known.items() if _required(option) and key not in options]
    if missing:
        raise HoflError(f"policy {name!r} needs the option {missing[0]!r}.")
    types = get_type_hints(POLICIES[name])
    return POLICIES[name](**{key: _read(key, value, types[key]) for key, value in options.items()})


def policy_spec(policy: Policy) -> dict[str, Any]:
    """Return a policy's name and options as plain values: ``policy_from(**policy_spec(p)) == p``.

    Options at their defaults are left out, required ones never.
    """
    for name, kind in POLICIES.items():
        if type(policy) is kind:
            values = [(option, getattr(policy, option.name)) for option in _options(kind)]
            chosen = {o.name: value for o, value in values if _required(o) or value != o.default}
            return {"name": name, **chosen}
    raise HoflError(
        f"{type(policy).__name__} has no name: list it in hofl.sampling.policies.POLICIES."
    )


def changed_policy(base: Policy, changes: Mapping[str, Any]) -> Policy:
    """Return what a configuration makes of a method's own policy.

    With a ``name`` the changes describe a policy completely. Without one they change options of
    the method's policy or, where it does not take them, of the first policy that does.
    """
    if "name" in changes:
        return policy_from(**changes)
    current = policy_spec(base)
    taken = {name: {o.name for o in _options(kind)} for name, kind in POLICIES.items()}
    fitting = (name for name in (current["name"], *POLICIES) if changes.keys() <= taken[name])
    name = next(fitting, current["name"])
    return policy_from(**{**(current if name == current["name"] else {"name": name}), **changes})


def _options(kind: Any) -> list[Field[Any]]:
    return [option for option in fields(kind) if option.init]


def _required(option: Field[Any]) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _read(key: str, value: Any, kind: Any) -> Any:
    """Read a value as the type of an option: whole numbers may be floats, lists are tuples."""
    for choice in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if choice is float and isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
        if get_origin(choice) is tuple and isinstance(value, list | tuple):
            return tuple(_read(key, entry, get_args(choice)[0]) for entry in value)
        if get_origin(choice) is Literal and value in get_args(choice):
            return value
        if type(value) is choice:
            return value
    shown = kind.__name__ if isinstance(kind, type) else kind
    raise HoflError(f"method.policy.{key} must be {shown}, got {value!r}.")
