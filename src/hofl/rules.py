"""The local rule, and what the rest of the package must know about its parts. Free of torch.

A rule names its parts: how the bottom learns, the surrogate it minimises, the estimator, the
directions. Each part is one entry of a table below, and the entry says everything that the wire
format, the server, the planner and the accountant must know, so that none of them compares names.
The code of a part is imported when a client first runs it.

To add a part, write it and enter it, from anywhere that is imported before the run:

>>> from hofl.core.optim import SGD
>>> BOTTOM_RULES["mine"] = BottomTraits(make="my.module:MyBottom", sends_scalars=True)
>>> LocalRule(optimizer=SGD(lr=0.1), bottom=Part("mine")).traits.sends_scalars
True
>>> del BOTTOM_RULES["mine"]
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from hofl.core.errors import HoflError
from hofl.core.optim import LARGEST, Optimizer, optimizer_from, optimizer_spec
from hofl.core.parts import Maker as Maker
from hofl.core.parts import Part as Part

LARGEST_RADIUS = 1.0
"""Weights are of the order 0.01 to 1: a larger step does not measure a derivative."""
MOST = 2**32 - 1
"""Local steps or directions: what a direction's key can count."""
UPLINK_BITS = (32, 8, 4, 2, 1)
"""Bits per value of an uploaded difference; 32 is plain float32."""


@dataclass(frozen=True, kw_only=True)
class BottomTraits:
    """What a bottom rule requires of the device, the wire and the server.

    Args:
        make: ``(rule, **options) -> BottomRule`` (``hofl.local.bottom``).
        sends_scalars: uploads E*q scalars, from which the server replays the bottom: its gradient
            is what the directions combine them to, so a rule may shape the scalars alone.
        sends_difference: uploads the bottom's difference beside the top's.
        exact: its gradients are those of backpropagation.
        may_raise_boundary: still trains the bottom when a device short of memory raises its
            boundary to L.
        needs_delta: the surrogate must give the loss gradient at the boundary.
        needs_backward: runs blocks below the boundary backward.
        probes: runs the bottom along q directions, whatever it sends.
    """

    make: Maker
    sends_scalars: bool = False
    sends_difference: bool = False
    exact: bool = False
    may_raise_boundary: bool = False
    needs_delta: bool = False
    needs_backward: bool = False
    probes: bool = False


@dataclass(frozen=True, kw_only=True)
class SurrogateTraits:
    """What a surrogate offers to the bottom.

    Args:
        make: ``(**options) -> Surrogate`` (``hofl.local.surrogates``).
        judges: measures how the loss changes when the boundary activation moves.
        gives_delta: gives the loss gradient at the boundary.
        judges_alone: measures without the top, which may then be elsewhere and silent.
        reach: (b, L) -> how many blocks a perturbed pass runs through, where that is all it
            computes; None where it is not.
    """

    make: Maker
    judges: bool = False
    gives_delta: bool = False
    judges_alone: bool = False
    reach: Callable[[int, int], int] | None = None


@dataclass(frozen=True, kw_only=True)
class EstimatorTraits:
    """An estimator of directional derivatives.

    Args:
        make: ``(mu, **options) -> Estimator`` (``hofl.local.estimators``).
        passes: perturbed passes through the bottom for each direction, beside the anchor; None
            where a direction costs something else.
    """

    make: Maker
    passes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DirectionTraits:
    """A rule for directions.

    Args:
        make: ``(key, layout, vectors, **options) -> Directions`` (``hofl.core.directions``), the
            same on the client and on the server.
        keep: ``(layout, **options) -> Keeper`` (``hofl.server.state``) for a rule whose directions
            depend on vectors that the server keeps and sends with every plan; None for the others.
        shared: whether options make the whole cohort use the same directions, hence one key.
        kept_from_means: what is kept follows, to the bit, from a cohort's mean scalars, so that a
            client that was away can repeat it (``hofl.catchup``).
        kept: what the server keeps, as the documents call it.
    """

    make: Maker
    keep: Maker | None = None
    shared: Callable[[Mapping[str, Any]], bool] = lambda options: False
    kept_from_means: bool = False
    kept: str = ""


BOTTOM_RULES: dict[str, BottomTraits] = {
    "zeroth-order": BottomTraits(
        make="hofl.local.bottom:ZerothOrder", sends_scalars=True, may_raise_boundary=True
    ),
    "zeroth-order-vector": BottomTraits(
        make="hofl.local.bottom:SentWhole",
        sends_difference=True,
        may_raise_boundary=True,
        probes=True,
    ),
    "frozen": BottomTraits(make="hofl.local.bottom:Frozen"),
    "recompute": BottomTraits(
        make="hofl.local.bottom:Recompute",
        sends_difference=True,
        exact=True,
        may_raise_boundary=True,
        needs_delta=True,
        needs_backward=True,
    ),
}
SURROGATES: dict[str, SurrogateTraits] = {
    "linear": SurrogateTraits(
        make="hofl.local.surrogates:Linear",
        judges=True,
        gives_delta=True,
        reach=lambda b, blocks: b,
    ),
    "end-to-end": SurrogateTraits(
        make="hofl.local.surrogates:EndToEnd",
        judges=True,
        reach=lambda b, blocks: blocks if b else 0,
    ),
    "auxiliary-head": SurrogateTraits(
        make="hofl.local.auxiliary:AuxiliaryHead", judges=True, judges_alone=True
    ),
    "none": SurrogateTraits(make="hofl.local.surrogates:TopOnly"),
}
ESTIMATORS: dict[str, EstimatorTraits] = {
    "forward": EstimatorTraits(make="hofl.local.estimators:forward_difference", passes=1),
    "central": EstimatorTraits(make="hofl.local.estimators:central_difference", passes=2),
    "forward-mode": EstimatorTraits(make="hofl.local.estimators:ForwardMode"),
}


def _if_asked(options: Mapping[str, Any]) -> bool:
    return options.get("shared") is True


DIRECTIONS: dict[str, DirectionTraits] = {
    "gaussian": DirectionTraits(make="hofl.core.directions:Gaussian", shared=_if_asked),
    "sphere": DirectionTraits(make="hofl.core.directions:Sphere"),
    "curved": DirectionTraits(
        make="hofl.core.directions:Curved",
        keep="hofl.server.curvature:Curvature",
        shared=_if_asked,
        kept_from_means=True,
        kept="H",
    ),
    "candidates": DirectionTraits(
        make="hofl.core.directions:Candidates",
        keep="hofl.server.candidates:Totals",
        shared=_if_asked,
        kept="A",
    ),
}


_ZEROTH_ORDER, _LINEAR = Part("zeroth-order"), Part("linear")
_FORWARD, _GAUSSIAN = Part("forward"), Part("gaussian")


@dataclass(frozen=True, kw_only=True)
class LocalRule:
    """What a client does in its E local steps.

    Args:
        optimizer: SGD or AdamW, state reset at every participation.
        local_steps: E.
        bottom: how the bottom learns, from ``BOTTOM_RULES``.
        surrogate: what the bottom minimises, from ``SURROGATES``.
        estimator: of directional derivatives, from ``ESTIMATORS``.
        directions: along which the bottom is probed, from ``DIRECTIONS``.
        q: directions per step.
        mu: perturbation radius.
        proximal: FedProx's strength, 0 for none.
        uplink_bits: 32, or 8, 4, 2 or 1 to send the difference stochastically rounded.
    """

    optimizer: Optimizer
    local_steps: int = 5
    bottom: Part = _ZEROTH_ORDER
    surrogate: Part = _LINEAR
    estimator: Part = _FORWARD
    directions: Part = _GAUSSIAN
    q: int = 2
    mu: float = 1e-3
    proximal: float = 0.0
    uplink_bits: int = 32

    def __post_init__(self) -> None:
        for name in PARTS:  # a plain name is a part without options
            object.__setattr__(self, name, Part.of(getattr(self, name)))

    @property
    def traits(self) -> BottomTraits:
        """The traits of its bottom rule."""
        return BOTTOM_RULES[self.bottom.name]

    @property
    def shares_directions(self) -> bool:
        """Whether the whole cohort uses the same directions."""
        return DIRECTIONS[self.directions.name].shared(dict(self.directions.options))

    def spec(self) -> dict[str, Any]:
        """Return plain values from which :meth:`from_spec` makes the same rule."""
        values: dict[str, Any] = {**vars(self), "optimizer": optimizer_spec(self.optimizer)}
        return {**values, **{name: getattr(self, name).spec() for name in PARTS}}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make a rule from a plan's plain values."""
        return cls(**{**spec, "optimizer": optimizer_from(spec["optimizer"])})

    def check(self) -> None:
        """Refuse a rule that cannot be run, before anything is loaded."""
        for name, table in PARTS.items():
            chosen = getattr(self, name).name
            if chosen not in table:
                known = ", ".join(table)
                raise HoflError(f"unknown {name} {chosen!r:.40}: choose one of {known}.")
        for name in ("local_steps", "q", "uplink_bits"):
            value = getattr(self, name)
            if type(value) is not int or not -MOST <= value <= MOST:
                raise HoflError(f"{name} must be an integer up to {MOST}, got {value!r:.40}.")
        for name in ("mu", "proximal"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
                raise HoflError(f"{name} must be a finite number, got {value!r:.40}.")
        if not 0 <= self.proximal < math.inf:
            raise HoflError(f"proximal must be finite and not negative, got {self.proximal}.")
        if self.q < 0:
            raise HoflError(f"q must not be negative, got {self.q}.")
        if self.local_steps < 1:
            raise HoflError(f"local_steps must be at least 1, got {self.local_steps}.")
        if self.uplink_bits not in UPLINK_BITS:
            shown = ", ".join(map(str, UPLINK_BITS))
            raise HoflError(f"uplink_bits must be one of {shown}, got {self.uplink_bits}.")
        self._check_bottom()

    def _check_bottom(self) -> None:
        """Refuse a bottom that needs what the rest of the rule does not give."""
        traits, surrogate = self.traits, SURROGATES[self.surrogate.name]
        if traits.sends_scalars or traits.probes:
            if self.q < 1:
                raise HoflError(f"q must be at least 1 direction, got {self.q}.")
            if not 0 < self.mu <= LARGEST_RADIUS:
                raise HoflError(f"mu must lie in (0, {LARGEST_RADIUS:g}], got {self.mu}.")
            if not surrogate.judges:
                fitting = ", ".join(name for name, entry in SURROGATES.items() if entry.judges)
                raise HoflError(
                    f"a {self.bottom.name} bottom needs a surrogate that measures how the loss "
                    f"changes, not {self.surrogate.name!r}: set surrogate to {fitting}."
                )
        if traits.needs_delta and not surrogate.gives_delta:
            fitting = ", ".join(name for name, entry in SURROGATES.items() if entry.gives_delta)
            raise HoflError(
                f"a {self.bottom.name} bottom needs delta, which {self.surrogate.name!r} does not "
                f"give: set surrogate to {fitting}."
            )


PARTS: dict[str, Mapping[str, Any]] = {
    "bottom": BOTTOM_RULES,
    "surrogate": SURROGATES,
    "estimator": ESTIMATORS,
    "directions": DIRECTIONS,
}
"""The fields of a rule that are parts, and the table of each."""
RULE_OPTIONS = tuple(field.name for field in fields(LocalRule) if field.name != "optimizer")
