"""From the names in a plan to the rules a client runs."""

import math

from hofl.errors import HoflError
from hofl.local.bottom import BOTTOM_RULES, BottomRule, Frozen
from hofl.local.estimators import ESTIMATORS
from hofl.local.surrogates import SURROGATES, Surrogate, top_only
from hofl.messages import LocalRule
from hofl.packing import WIDTHS

LARGEST_RADIUS = 1.0
"""Weights are of the order 0.01 to 1: a larger step is no derivative of anything."""


def resolve(rule: LocalRule, boundary: int) -> tuple[BottomRule, Surrogate]:
    """The bottom rule and surrogate of a participation; an empty bottom needs neither."""
    check_rule(rule)
    if boundary == 0:
        return Frozen(), top_only
    return BOTTOM_RULES[rule.bottom](rule), SURROGATES[rule.surrogate]


def check_rule(rule: LocalRule) -> None:
    """Say early and plainly what is wrong with a local rule."""
    for field, known in (
        ("bottom", BOTTOM_RULES),
        ("surrogate", SURROGATES),
        ("estimator", ESTIMATORS),
    ):
        name = getattr(rule, field)
        if name not in known:
            raise HoflError(f"unknown {field} {name!r}: choose one of {', '.join(known)}.")
    if not 0 <= rule.proximal < math.inf:
        raise HoflError(f"proximal must be finite and not negative, got {rule.proximal}.")
    if rule.q < 0:
        raise HoflError(f"q must not be negative, got {rule.q}.")
    if rule.local_steps < 1:
        raise HoflError(f"local_steps must be at least 1, got {rule.local_steps}.")
    if rule.uplink_bits not in WIDTHS:
        shown = ", ".join(map(str, WIDTHS))
        raise HoflError(f"uplink_bits must be one of {shown}, got {rule.uplink_bits}.")
    if rule.bottom == "zeroth-order":
        if rule.q < 1:
            raise HoflError(f"q must be at least 1 direction, got {rule.q}.")
        if not 0 < rule.mu <= LARGEST_RADIUS:
            raise HoflError(f"mu must lie in (0, {LARGEST_RADIUS:g}], got {rule.mu}.")
        if rule.surrogate == "none":
            raise HoflError("a zeroth-order bottom needs a surrogate: linear or end-to-end.")
    if rule.bottom == "recompute" and rule.surrogate != "linear":
        raise HoflError("a recomputed bottom needs delta: set surrogate to linear.")
