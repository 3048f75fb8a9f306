"""Sampling policies by name, with their options, as configurations write them.

To add one, list its name, what makes it and the options it takes in ``POLICIES``.

>>> named_policy("water-filling", weight=2.0) == WaterFilling(2.0)
True
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hofl.errors import HoflError
from hofl.sampling.policies import DimensionAware, Policy, Uniform
from hofl.sampling.schedules import OPTIONS as BETA_OPTIONS
from hofl.sampling.schedules import Scheduled, beta_options, beta_policy
from hofl.sampling.water_filling import WaterFilling


@dataclass(frozen=True)
class Kind:
    """One kind of policy.

    Args:
        make: options -> policy.
        read: policy -> the options that make it again.
        types: the policies it makes.
        options: what it takes.
        needed: which of these it cannot do without.
    """

    make: Callable[..., Policy]
    read: Callable[[Any], dict[str, Any]]
    types: tuple[type, ...]
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


def _water_filling_options(policy: WaterFilling) -> dict[str, Any]:
    return {key: value for key, value in vars(policy).items() if value is not None}


POLICIES: dict[str, Kind] = {
    "uniform": Kind(Uniform, vars, (Uniform,)),
    "dimension-aware": Kind(beta_policy, beta_options, (DimensionAware, Scheduled), BETA_OPTIONS),
    "water-filling": Kind(
        WaterFilling,
        _water_filling_options,
        (WaterFilling,),
        ("weight", "floor", "costs"),
        ("weight",),
    ),
}
OPTIONS = ("policy", *(option for kind in POLICIES.values() for option in kind.options))


def named_policy(policy: str, **options: Any) -> Policy:
    """The policy of this name with these options."""
    if policy not in POLICIES:
        raise HoflError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}.")
    kind = POLICIES[policy]
    foreign = sorted(set(options) - set(kind.options))
    if foreign:
        takes = ", ".join(kind.options) or "no options"
        raise HoflError(
            f"policy {policy!r} has no option {foreign[0]!r}: it takes {takes}. "
            f"In a run, the change ~method.{foreign[0]} takes it out of the configuration."
        )
    missing = [name for name in kind.needed if name not in options]
    if missing:
        raise HoflError(f"policy {policy!r} needs {missing[0]!r}.")
    return kind.make(**options)


def policy_options(policy: Policy) -> dict[str, Any]:
    """Name and options of a policy: ``named_policy(**policy_options(p))`` equals p."""
    for name, kind in POLICIES.items():
        if type(policy) in kind.types:
            return {"policy": name, **kind.read(policy)}
    raise HoflError(f"{type(policy).__name__} has no name: list it in hofl.sampling.named.")


def changed_policy(base: Policy, changes: dict[str, Any]) -> Policy:
    """A policy with some options replaced; ``policy`` or a foreign option changes its kind."""
    old = policy_options(base)
    name = changes.get("policy") or _owner(old["policy"], changes)
    kept = old if name == old["policy"] else {}
    return named_policy(**{**kept, **changes, "policy": name})


def _owner(current: str, changes: dict[str, Any]) -> str:
    """The kind that takes these options: the current one, or the first that knows them all."""
    kinds = [current, *POLICIES]
    fitting = (name for name in kinds if set(changes) <= set(POLICIES[name].options))
    return next(fitting, current)
