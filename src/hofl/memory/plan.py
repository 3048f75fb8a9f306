"""The memory plan of a model and a workload: every boundary and option, and what fits a budget."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hofl.core.errors import HoflError
from hofl.core.sizes import parse_bytes, show_bytes
from hofl.local.site import PLAIN, Execution
from hofl.memory.boundaries import all_boundaries
from hofl.memory.hollow import hollow_model
from hofl.memory.trace import trace
from hofl.memory.workload import Cost, Workload
from hofl.models.adapters import Lora
from hofl.models.loading import DTYPES, read_model_config
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.rules import LocalRule


@dataclass(frozen=True)
class Strategy:
    """How a plan is chosen among those that fit a budget.

    Args:
        weighs_options: whether other executions than the plain step are candidates.
        order: what is best is least.
    """

    weighs_options: bool
    order: Callable[[Cost], Any]


STRATEGIES: dict[str, Strategy] = {
    # The paper: the largest first-order segment of the plain step.
    "paper": Strategy(weighs_options=False, order=lambda cost: cost.boundary),
    # The largest first-order segment, then the least compute, then the fewest bytes; among equals,
    # weights in memory before weights on disk, and larger micro-batches.
    "best": Strategy(
        weighs_options=True,
        order=lambda cost: (
            cost.boundary,
            round(cost.relative_compute, 9),
            cost.uplink_bytes,
            cost.execution.stream_bottom,
            -(cost.execution.micro_batch or math.inf),
            cost.peak_bytes,
        ),
    ),
}


def strategy_named(name: str) -> Strategy:
    """Return a strategy by name."""
    if name not in STRATEGIES:
        raise HoflError(f"unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]


def choose(costs: Iterable[Cost], budget: int, strategy: str = "paper") -> Cost | None:
    """Return the best of the costs that fit the budget, or None."""
    order = strategy_named(strategy).order
    return min((cost for cost in costs if cost.peak_bytes <= budget), key=order, default=None)


@dataclass(frozen=True)
class MemoryPlan:
    """Costs of a workload on a model, traced when they are needed.

    Args:
        model: a hollow model.
        workload: what a device is asked to do.
        base: the execution of plain plans.
        streaming: whether the bottom may be read from files.
    """

    model: SplitModel
    workload: Workload
    base: Execution = PLAIN
    streaming: bool = True

    @cached_property
    def plain(self) -> list[Cost]:
        """Return the costs of the plain step at boundaries 0..L."""
        return all_boundaries(self.model, self.workload, self.base)

    @cached_property
    def options(self) -> list[Cost]:
        """Return the costs of other executions, with the same gradients, at boundaries 0..L."""
        return [
            cost
            for execution in executions(self.workload.batch_size, self.streaming)
            for cost in all_boundaries(self.model, self.workload, execution)
        ]

    def at(self, boundary: int) -> Cost:
        """Return the cost of the plain step at one boundary."""
        return trace(self.model, self.workload, boundary, self.base)

    def fitting(self, budget: int, strategy: str) -> Cost:
        """Return what fits the budget best.

        Raises:
            HoflError: nothing fits; it names the smallest plan.
        """
        chosen = self.choose(budget, strategy)
        if chosen is None:
            raise HoflError(self._nothing_fits(budget, strategy))
        return chosen

    def choose(self, budget: int, strategy: str) -> Cost | None:
        """Return what fits the budget best by a strategy, or None."""
        options = self.weighed(strategy)
        chosen = choose([*self.plain, *options], budget, strategy)
        if chosen is None or chosen not in options:
            return chosen
        return self._relaxed(chosen, budget, strategy)

    def _relaxed(self, chosen: Cost, budget: int, strategy: str) -> Cost:
        """Try longer segments (less compute), then larger micro-batches, at the same boundary.

        The largest of each is the whole (0). Tracing them at every boundary would not pay.
        """
        blocks, batch = self.model.num_blocks - chosen.boundary, self.workload.batch_size
        for name, most in (("checkpoint", blocks), ("micro_batch", batch)):
            if not getattr(chosen.execution, name):
                continue
            sizes = [2**k for k in range(1, most.bit_length()) if 2**k < most]
            larger = [replace(chosen.execution, **{name: size}) for size in (*sizes, 0)]
            costs = [trace(self.model, self.workload, chosen.boundary, e) for e in larger]
            chosen = choose([chosen, *costs], budget, strategy) or chosen
        return chosen

    def weighed(self, strategy: str) -> list[Cost]:
        """Return the options that a strategy weighs besides the plain step."""
        return self.options if strategy_named(strategy).weighs_options else []

    def _nothing_fits(self, budget: int, strategy: str) -> str:
        options = self.weighed(strategy)
        least = min([*self.plain, *options], key=lambda cost: cost.peak_bytes)
        way = ", ".join(filter(None, [f"boundary {least.boundary}", least.execution.describe()]))
        other = "" if options else ", or stream the bottom (strategy best weighs that and more)"
        return (
            f"nothing fits {show_bytes(budget)}: the smallest needs {show_bytes(least.peak_bytes)} "
            f"({way}). Lower the batch size or the length{other}."
        )

    def facts(
        self, name: str, chosen: Cost | Mapping[str, Cost] | None, strategy: str = "best"
    ) -> dict[str, Any]:
        """Return everything as plain values; ``chosen`` is one cost, one per budget, or None."""
        choice: dict[str, Any] | None
        if isinstance(chosen, Mapping):
            choice = {
                budget: {**cost_facts(cost), "padded": self._padded(budget, strategy)}
                for budget, cost in chosen.items()
            }
        else:
            choice = None if chosen is None else cost_facts(chosen)
        return {
            "model": name,
            "batch_size": self.workload.batch_size,
            "seq_len": self.workload.seq_len,
            "tokens": self.workload.tokens,
            "padded_tokens": self.workload.padded().tokens,
            "boundaries": [cost_facts(cost) for cost in self.plain],
            "options": [cost_facts(cost) for cost in self.weighed(strategy)],
            "chosen": choice,
        }

    @cached_property
    def padded(self) -> "MemoryPlan":
        """Return the plan of the same texts, each padded to the longest."""
        padded = self.workload.padded()
        return self if padded == self.workload else replace(self, workload=padded)

    def _padded(self, budget: str, strategy: str) -> dict[str, Any] | None:
        """Return what would fit a budget if texts were padded, or None."""
        cost = self.padded.choose(parse_bytes(budget), strategy)
        return None if cost is None else cost_facts(cost)


def memory_plan(
    name: str,
    rule: LocalRule,
    *,
    batch_size: int,
    seq_len: int,
    answer_tokens: int = 0,
    rank: int = 8,
    storage_dtype: str = "bfloat16",
    compute_dtype: str = "bfloat16",
) -> MemoryPlan:
    """Plan a LoRA adapter on a named model, from the model's configuration alone."""
    for dtype, known in ((storage_dtype, [*DTYPES, *FORMS]), (compute_dtype, [*DTYPES])):
        if dtype not in known:
            raise HoflError(f"unknown dtype {dtype!r}: choose one of {', '.join(known)}.")
    rule.check()
    config = read_model_config(name)
    longest = getattr(config, "max_position_embeddings", seq_len)
    if seq_len > longest:
        raise HoflError(f"seq_len {seq_len} exceeds the model's window of {longest}.")
    model = hollow_model(
        config,
        adapter=Lora(rank=rank),
        storage_dtype=DTYPES.get(storage_dtype, torch.float32),
        compute_dtype=DTYPES[compute_dtype],
        form=storage_dtype if storage_dtype in FORMS else None,
    )
    work = Workload.even(
        rule=rule, batch_size=batch_size, seq_len=seq_len, answer_tokens=answer_tokens
    )
    return MemoryPlan(model, work, streaming=bool(model.on_disk))


def executions(batch_size: int, streaming: bool) -> Iterator[Execution]:
    """Yield the ways to run a step besides the plain one, from the fastest to the leanest."""
    if batch_size > 1:
        yield Execution(micro_batch=1)
    yield Execution(checkpoint=1)
    micro = 1 if batch_size > 1 else 0
    if micro:
        yield Execution(micro_batch=micro, checkpoint=1)
    if streaming:
        yield Execution(micro_batch=micro, checkpoint=1, stream_bottom=True)


def cost_facts(cost: Cost) -> dict[str, Any]:
    """Return a cost as plain values."""
    return {
        "boundary": cost.boundary,
        "peak_bytes": cost.peak_bytes,
        "zo_params": cost.zo_params,
        "fo_params": cost.fo_params,
        "uplink_bytes": cost.uplink_bytes,
        "relative_compute": round(cost.relative_compute, 6),
        "checkpointing": cost.execution.checkpoint,
        "micro_batch": cost.execution.micro_batch,
        "micro_tokens": cost.execution.micro_tokens,
        **({"stream_bottom": True} if cost.execution.stream_bottom else {}),
    }
