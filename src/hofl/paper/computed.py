"""What the paper shows without training: boundary tiers, the memory figure, the structural table.

Each is computed from the package and set beside the paper's numbers. Memory is planned from the
models' configurations, which the package holds: neither weights nor a network are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hofl.memory.cohort import Demand, cohort_demands
from hofl.memory.plan import MemoryPlan, memory_plan
from hofl.methods import METHODS, Method, device_boundary, method
from hofl.paper.numbers import MEMORY, STRUCTURE
from hofl.paper.settings import MODELS, SEEDS
from hofl.rules import ESTIMATORS, SURROGATES
from hofl.sampling.policies import DimensionAware
from hofl.sampling.tiers import deal_tiers

GIB = 2**30
BETAS = (0.0, 0.25, 0.5, 0.75)
CLIENTS, COHORT, ROUNDS = 30, 6, 160
BATCH, LENGTH = 16, 1024
"""Of the memory figure: examples of a step, and tokens of each."""


@dataclass(frozen=True)
class Beside:
    """A number of the paper beside the one computed here.

    Args:
        what: it is.
        paper: what the paper states.
        here: what is computed.
    """

    what: str
    paper: float
    here: float

    @property
    def deviation(self) -> float:
        """Return by what share of the paper's number this one is larger."""
        return self.here / self.paper - 1


@dataclass(frozen=True)
class Tier:
    """A tier of a model: its boundary, d_ZO, and the planned peak of one device in GiB."""

    boundary: int
    zo_params: int
    peak: float


@dataclass(frozen=True)
class ModelTiers:
    """The tiers of one model.

    Args:
        model: a key of ``MODELS``.
        blocks: L by the paper, and L of the model's configuration.
        tiers: from the largest first-order segment to the smallest.
        clients: how many of the N clients each tier has.
    """

    model: str
    blocks: tuple[int, int]
    tiers: tuple[Tier, ...]
    clients: tuple[int, ...]


@dataclass(frozen=True)
class MemoryFigure:
    """Both panels of the memory figure, in GiB.

    Args:
        peaks: of one device at boundaries 0..L.
        pure: of one device under DeComFL.
        demands: of a round's cohort by method.
        beside: the numbers that the paper states.
    """

    peaks: tuple[float, ...]
    pure: float
    demands: tuple[Demand, ...]
    beside: tuple[Beside, ...]


@dataclass(frozen=True)
class Structure:
    """A method's structure by the paper, and of its step in this package.

    Args:
        method: its name.
        paper: paradigm, boundaries, uploads of activations, local steps per aggregation.
        boundaries: how devices are cut here.
        crossings: activations per step that pass from the bottom to the top; in split learning
            each of them is an upload, here they stay on the device.
        local_steps: E of the method as it is registered.
    """

    method: str
    paper: tuple[str, str, str, str]
    boundaries: str
    crossings: int
    local_steps: int


@cache
def _plan(model: str, name: str = "hofl") -> MemoryPlan:
    folder = MODELS[model].architecture
    return memory_plan(folder, METHODS[name].local, batch_size=BATCH, seq_len=LENGTH)


def tiers(names: Sequence[str] = tuple(MODELS)) -> list[ModelTiers]:
    """Return the tiers of the paper's models, with what a device of each needs."""
    models = []
    for name in names:
        model, plan = MODELS[name], _plan(name)
        costs = [plan.at(boundary) for boundary in model.tiers]
        dealt = deal_tiers(model.tiers, CLIENTS, plan.model.num_blocks, SEEDS[0], "tiers")
        models.append(
            ModelTiers(
                name,
                (model.blocks, plan.model.num_blocks),
                tuple(Tier(c.boundary, c.zo_params, c.peak_bytes / GIB) for c in costs),
                tuple(dealt.count(boundary) for boundary in model.tiers),
            )
        )
    return models


def memory() -> MemoryFigure:
    """Return the memory figure, planned: batch 16, length 1024, BF16 backbone, FP32 LoRA."""
    name = "Qwen2.5-1.5B"
    plan, pure = _plan(name), _plan(name, "decomfl")
    boundaries = deal_tiers(MODELS[name].tiers, CLIENTS, MODELS[name].blocks, SEEDS[0], "tiers")
    demands = cohort_demands(
        plan,
        pure,
        boundaries,
        {beta: DimensionAware(beta) for beta in BETAS},
        cohort=COHORT,
        rounds=ROUNDS,
        seed=SEEDS[0],
    )
    peaks = [cost.peak_bytes / GIB for cost in plan.plain]
    here = [peaks[0], peaks[24], *_cohorts(demands)]
    beside = [Beside(what, MEMORY[what], value) for what, value in zip(MEMORY, here, strict=True)]
    single = pure.at(plan.model.num_blocks).peak_bytes / GIB
    return MemoryFigure(tuple(peaks), single, tuple(demands), tuple(beside))


def _cohorts(demands: Sequence[Demand]) -> list[float]:
    """Return what FedAvg and HO-FL with beta 0 and 0.75 need, over drawn cohorts as the paper."""
    by_name = {demand.name: demand.simulated / GIB for demand in demands}
    return [by_name["FedAvg"], by_name["HO-FL, beta 0"], by_name["HO-FL, beta 0.75"]]


def structure() -> list[Structure]:
    """Return the structural table, with what the package's methods do in the same columns."""
    steps: dict[str, Method] = {
        "hosl": METHODS["hosl"],
        "ho-sfl": METHODS["ho-sfl"],
        "heron-sfl": method("hofl", surrogate="auxiliary-head"),
        "hofl": METHODS["hofl"],
    }
    return [
        Structure(
            name,
            STRUCTURE[name],
            "one per client" if chosen.boundary is device_boundary else "one for all",
            crossings(chosen),
            chosen.local.local_steps,
        )
        for name, chosen in steps.items()
    ]


def crossings(chosen: Method) -> int:
    """Return how many activations of a step pass the boundary: the anchor, and whole probes.

    A surrogate that is evaluated at the boundary itself keeps its probes below it.
    """
    rule, boundary, blocks = chosen.local, 1, 2
    reach, passes = SURROGATES[rule.surrogate.name].reach, ESTIMATORS[rule.estimator.name].passes
    if reach is None or passes is None or reach(boundary, blocks) <= boundary:
        return 1
    return 1 + passes * rule.q
