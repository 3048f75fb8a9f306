"""How the plan of a device is chosen, by name: ``fleet.strategy`` and ``hofl plan --strategy``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hofl.core.errors import HoflError
from hofl.memory.capability import MEASURED, NO_HEADROOM, Capability, Headroom, memory_alone
from hofl.methods import Method

if TYPE_CHECKING:  # configurations know strategies by name without the model libraries
    from hofl.memory.planner import Planner
    from hofl.memory.workload import Cost


class Strategy(Protocol):
    """A way to choose what a device runs."""

    own_rules: bool
    """Whether devices get boundaries and rules of their own, so that no method fixes either."""
    headroom: Headroom
    """What it leaves above a plan's peak."""

    def choose(self, planner: "Planner", device: Capability) -> "Cost":
        """Return the plan of a device; raise HoflError where nothing fits."""
        ...

    def facts(self, planner: "Planner") -> dict[str, Any]:
        """Return what is recorded of the whole plan besides its choices; nothing unless said."""
        return {}

    def choice_facts(self, planner: "Planner", cost: "Cost") -> dict[str, Any]:
        """Return what is recorded of a choice besides its cost; nothing unless said."""
        return {}


class Best(Strategy):
    """Weigh all that a device can do: exact where it can be, zeroth-order where it must be."""

    own_rules = True
    headroom = MEASURED

    def choose(self, planner: "Planner", device: Capability) -> "Cost":
        """Return the best plan of a device."""
        return planner.best(device)

    def choice_facts(self, planner: "Planner", cost: "Cost") -> dict[str, Any]:
        """Return the headroom that the choice leaves for the resident set."""
        return {"headroom_bytes": planner.headroom.of(cost)}


class Paper(Strategy):
    """Take the largest first-order segment whose plain step fits the memory, as in the paper.

    Budgets are compared with peaks alone.
    """

    own_rules = False
    headroom = NO_HEADROOM

    def choose(self, planner: "Planner", device: Capability) -> "Cost":
        """Return the plain step with the lowest boundary that fits."""
        return planner.memory.fitting(memory_alone(device))

    def facts(self, planner: "Planner") -> dict[str, Any]:
        """Return the cost of the plain step at every boundary."""
        return {"boundaries": [cost.facts() for cost in planner.memory.plain]}


STRATEGIES: dict[str, Strategy] = {"best": Best(), "paper": Paper()}


def strategy_named(name: str) -> Strategy:
    """Return a strategy; refuse an unknown name."""
    if name not in STRATEGIES:
        raise HoflError(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]


def check_method(name: str, method: Method) -> None:
    """Refuse a strategy with rules of devices' own where one boundary holds for all."""
    if strategy_named(name).own_rules and method.one_boundary:
        raise HoflError(
            f"the strategy {name} gives every device a boundary and a rule of its own, and this "
            "method cuts all devices at one boundary: use the strategy paper, or a method such as "
            "hofl."
        )


def planned_facts(
    strategy: Strategy, planner: "Planner", able: Mapping[str, Capability], model: str
) -> tuple[dict[str, "Cost"], dict[str, Any]]:
    """Plan devices; return the choice for each, and the plan behind it as plain values.

    Args:
        strategy: chooses.
        planner: of the model and the workload.
        able: devices by name.
        model: its name.
    """
    chosen = {name: strategy.choose(planner, device) for name, device in able.items()}
    padded = replace(planner, memory=planner.memory.padded)
    rows = {
        name: {
            **cost.facts(),
            **strategy.choice_facts(planner, cost),
            "padded": _facts_where_it_fits(strategy, padded, able[name]),
        }
        for name, cost in chosen.items()
    }
    return chosen, {**planner.memory.shape(model), **strategy.facts(planner), "chosen": rows}


def _facts_where_it_fits(
    strategy: Strategy, planner: "Planner", device: Capability
) -> dict[str, Any] | None:
    """Return the choice for a device as plain values; None where nothing fits."""
    try:
        return strategy.choose(planner, device).facts()
    except HoflError:
        return None
