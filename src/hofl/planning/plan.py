"""The memory plan of a model and a workload: every boundary, every option, and what is chosen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hofl.errors import HoflError
from hofl.local.execution import PLAIN, Execution
from hofl.local.rules import check_rule
from hofl.messages import LocalRule
from hofl.models.adapters import Lora
from hofl.models.loading import DTYPES, read_model_config
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.planning.boundaries import all_boundaries
from hofl.planning.budget import choose, nothing_fits
from hofl.planning.hollow import hollow_model
from hofl.planning.trace import trace
from hofl.planning.workload import Cost, Workload


@dataclass(frozen=True)
class MemoryPlan:
    """Costs of a workload on a model, traced when they are asked for.

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
        """The step as it is, at boundaries 0..L."""
        return all_boundaries(self.model, self.workload, self.base)

    @cached_property
    def options(self) -> list[Cost]:
        """The same gradients in less memory: other executions at boundaries 0..L."""
        return [
            cost
            for execution in executions(self.workload.batch_size, self.streaming)
            for cost in all_boundaries(self.model, self.workload, execution)
        ]

    def at(self, boundary: int) -> Cost:
        """The plain step at one boundary."""
        return trace(self.model, self.workload, boundary, self.base)

    def fitting(self, budget: int, strategy: str) -> Cost:
        """What fits the budget best; an error that says what would."""
        chosen = self.choose(budget, strategy)
        if chosen is None:
            raise HoflError(nothing_fits([*self.plain, *self.weighed(strategy)], budget, strategy))
        return chosen

    def choose(self, budget: int, strategy: str) -> Cost | None:
        """What fits the budget best by a strategy, or None."""
        options = self.weighed(strategy)
        chosen = choose(self.plain, options, budget, strategy)
        if chosen is None or chosen not in options:
            return chosen
        return self._relaxed(chosen, budget, strategy)

    def _relaxed(self, chosen: Cost, budget: int, strategy: str) -> Cost:
        """The same boundary with longer segments (less compute), then larger micro-batches.

        The longest is the whole (0). Only worth tracing at the boundary in question.
        """
        blocks, batch = self.model.num_blocks - chosen.boundary, self.workload.batch_size
        for name, most in (("checkpoint", blocks), ("micro_batch", batch)):
            if not getattr(chosen.execution, name):
                continue
            sizes = [2**k for k in range(1, most.bit_length()) if 2**k < most]
            larger = [replace(chosen.execution, **{name: size}) for size in (*sizes, 0)]
            costs = [trace(self.model, self.workload, chosen.boundary, e) for e in larger]
            chosen = choose([], [chosen, *costs], budget, strategy) or chosen
        return chosen

    def weighed(self, strategy: str) -> list[Cost]:
        """The options that a strategy looks at."""
        return self.options if strategy == "best" else []

    def facts(
        self, name: str, chosen: Cost | Mapping[str, Cost] | None, strategy: str = "best"
    ) -> dict[str, Any]:
        """Everything as plain values; ``chosen`` is one plan, one for each budget, or none."""
        choice: dict[str, Any] | None
        if isinstance(chosen, Mapping):
            choice = {budget: cost_facts(cost) for budget, cost in chosen.items()}
        else:
            choice = None if chosen is None else cost_facts(chosen)
        return {
            "model": name,
            "batch_size": self.workload.batch_size,
            "seq_len": self.workload.seq_len,
            "boundaries": [cost_facts(cost) for cost in self.plain],
            "options": [cost_facts(cost) for cost in self.weighed(strategy)],
            "chosen": choice,
        }


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
    """The plan of a LoRA adapter on a named model, from the model's configuration alone."""
    for dtype, known in ((storage_dtype, [*DTYPES, *FORMS]), (compute_dtype, [*DTYPES])):
        if dtype not in known:
            raise HoflError(f"unknown dtype {dtype!r}: choose one of {', '.join(known)}.")
    check_rule(rule)
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
    work = Workload(rule=rule, batch_size=batch_size, seq_len=seq_len, answer_tokens=answer_tokens)
    return MemoryPlan(model, work, streaming=bool(model.on_disk))


def executions(batch_size: int, streaming: bool) -> Iterator[Execution]:
    """Ways to run a step besides the plain one, from the quickest to the leanest."""
    if batch_size > 1:
        yield Execution(micro_batch=1)
    yield Execution(checkpoint=1)
    micro = 1 if batch_size > 1 else 0
    if micro:
        yield Execution(micro, checkpoint=1)
    if streaming:
        yield Execution(micro, checkpoint=1, stream_bottom=True)


def cost_facts(cost: Cost) -> dict[str, Any]:
    """A cost as plain values."""
    return {
        "boundary": cost.boundary,
        "peak_bytes": cost.peak_bytes,
        "zo_params": cost.zo_params,
        "fo_params": cost.fo_params,
        "uplink_bytes": cost.uplink_bytes,
        "relative_compute": round(cost.relative_compute, 6),
        "checkpointing": cost.execution.checkpoint,
        "micro_batch": cost.execution.micro_batch,
        **({"stream_bottom": True} if cost.execution.stream_bottom else {}),
    }
