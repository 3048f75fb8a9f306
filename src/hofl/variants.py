"""A device's own form of a run's local rule: exact where it can be, zeroth-order where it must be.

A method names one rule. A device may run another bottom in its place, so that exact, hybrid and
frozen bottoms train one adapter together; optimizer, E, q and mu are always the run's. What differs
is a few plain values (:func:`changes_of`), which a device declares and a run's folder records:

>>> from hofl.core.optim import SGD
>>> run = LocalRule(optimizer=SGD(lr=0.1))
>>> changes_of(run, exact(run))
{'bottom': 'recompute', 'uplink_bits': 4}
>>> changed(run, {"bottom": "recompute", "uplink_bits": 4}) == exact(run)
True
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hofl.core.errors import HoflError
from hofl.rules import SURROGATES, LocalRule, Part

Changes = Mapping[str, Any]
"""What a device's rule has in place of the run's, as plain values by name."""
OWN = {"bottom": str, "surrogate": str, "uplink_bits": int}
"""Fields of a rule that a device may change, and the type of their plain values."""
EXACT_BITS = 4
"""Bits per value of an exact bottom's upload, unless the run has fewer."""


def exact(rule: LocalRule, bits: int = EXACT_BITS) -> LocalRule:
    """Return the rule with exact gradients everywhere, and an upload of few bits."""
    if rule.traits.exact:
        return rule
    given = SURROGATES[rule.surrogate.name].gives_delta
    return replace(
        rule,
        bottom=Part("recompute"),
        surrogate=rule.surrogate if given else Part("linear"),
        uplink_bits=min(rule.uplink_bits, bits),
    )


def frozen(rule: LocalRule) -> LocalRule:
    """Return the rule with a bottom that is not trained."""
    return replace(rule, bottom=Part("frozen"), surrogate=Part("none"))


def forward_only(rule: LocalRule) -> LocalRule:
    """Return the rule for a device that runs nothing backward: zeroth order, by the loss itself."""
    return replace(rule, bottom=Part("zeroth-order"), surrogate=Part("end-to-end"))


def changes_of(run: LocalRule, device: LocalRule) -> dict[str, Any]:
    """Return what a device's own rule changes in the run's."""
    parts = {name: (getattr(run, name), getattr(device, name)) for name in OWN}
    return {
        name: new.name if isinstance(new, Part) else new
        for name, (old, new) in parts.items()
        if old != new
    }


def changed(run: LocalRule, changes: Changes) -> LocalRule:
    """Return the run's rule with a device's changes, checked.

    Raises:
        HoflError: a device may not change that, or the rule cannot be run.
    """
    for name, value in changes.items():
        if name not in OWN:
            raise HoflError(f"a device's rule cannot change {name!r:.40}: only {', '.join(OWN)}.")
        if type(value) is not OWN[name]:
            kind = OWN[name].__name__
            raise HoflError(f"a device's {name} must be of type {kind}, got {value!r:.40}.")
    rule = replace(run, **changes)
    rule.check()
    return rule
