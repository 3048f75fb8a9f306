"""Example options of every entry of every table of parts, for the suites that run over all entries.

A new entry is tested by being listed in its table; a suite fails until it has an example here.
"""

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from hofl.core.optim import SGD
from hofl.rules import BOTTOM_RULES, SURROGATES, LocalRule, Maker, Part
from support.models import CONFIGS

Examples = dict[str, list[dict[str, Any]]]
"""Options to try, by name of the entry; ``{}`` is an entry as it is."""

BOTTOM_EXAMPLES: Examples = {
    "zeroth-order": [{}],
    "zeroth-order-vector": [{}],
    "frozen": [{}],
    "recompute": [{}],
}
SURROGATE_EXAMPLES: Examples = {
    "linear": [{}],
    "end-to-end": [{}],
    "auxiliary-head": [{"rank": 2, "alpha": 4.0, "blocks": 0}],
    "none": [{}],
}
ESTIMATOR_EXAMPLES: Examples = {"forward": [{}], "central": [{}], "forward-mode": [{}]}
DIRECTION_EXAMPLES: Examples = {
    "gaussian": [{}, {"shared": True}],
    "sphere": [{}],
    "curved": [{}, {"nu": 0.5, "eps": 1e-3, "shared": True}],
    # A pool repeats itself: these are large enough to see nothing twice in a few draws.
    "candidates": [{"pool": 2**20}, {"pool": 2**19, "seed": 3, "shared": True}],
}
AGGREGATION_EXAMPLES: Examples = {
    "mean": [{}],
    "by-examples": [{}],
    "unbiased": [{}],
    "exact-first": [{}],
    "by-precision": [{}],
    "mean-of-scalars": [{}],
    "from-start": [{}],
    "median": [{}],
    "trimmed-mean": [{}, {"share": 0.0}, {"share": 0.4}],
}


def parts_of(examples: Examples) -> list[Part]:
    """All examples of a table as parts."""
    return [Part.of({"name": name, **given}) for name, tried in examples.items() for given in tried]


def check_examples(examples: Examples, makers: Mapping[str, Maker], inputs: int) -> None:
    """Every entry has an example, and every option of every entry is tried.

    Args:
        examples: by name of the entry.
        makers: by name of the entry.
        inputs: how many arguments a maker takes before its options.
    """
    assert set(examples) == set(makers)
    for name, make in makers.items():
        assert examples[name], f"{name} has no example"
        function = resolve_name(make) if isinstance(make, str) else make
        known = set(list(inspect.signature(function).parameters)[inputs:])
        assert {key for given in examples[name] for key in given} == known, name


def fitting_surrogates(bottom: str) -> list[Part]:
    """The surrogates that a bottom rule's traits allow."""
    traits = BOTTOM_RULES[bottom]
    return [
        part
        for part in parts_of(SURROGATE_EXAMPLES)
        if SURROGATES[part.name].judges or not (traits.sends_scalars or traits.probes)
        if SURROGATES[part.name].gives_delta or not traits.needs_delta
    ]


def owns_parameters(surrogate: Part) -> bool:
    """Whether a surrogate trains parameters of its own: it is then not the loss to first order."""
    made = surrogate.made_by(SURROGATES[surrogate.name].make)
    return made.parameters(CONFIGS["llama"]) is not None


def rules_of(**fields: Any) -> list[LocalRule]:
    """Every bottom rule with every surrogate that it allows and that every model fits."""
    values = {"optimizer": SGD(lr=0.05), **fields}
    return [
        LocalRule(**values, bottom=bottom, surrogate=surrogate)
        for bottom in parts_of(BOTTOM_EXAMPLES)
        for surrogate in fitting_surrogates(bottom.name)
        if not owns_parameters(surrogate)
    ]


def shown(value: LocalRule | Part) -> str:
    """A test's name for a rule or a part."""
    if isinstance(value, LocalRule):
        return f"{shown(value.bottom)}-{shown(value.surrogate)}"
    return " ".join([value.name, *(f"{key}={option}" for key, option in value.options)])
