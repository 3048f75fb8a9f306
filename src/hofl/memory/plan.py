"""The memory plan of a model and a workload: every boundary and option, and what fits a budget."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from hofl.core.errors import HoflError
from hofl.core.sizes import show_bytes
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.memory.boundaries import all_boundaries
from hofl.memory.hollow import hollow_model
from hofl.memory.trace import trace
from hofl.memory.workload import Cost, Workload
from hofl.models.adapters import Lora
from hofl.models.files import can_be_streamed
from hofl.models.loading import DTYPES, read_model_config, resolve_reference
from hofl.models.quantised import FORMS
from hofl.models.split import SplitModel
from hofl.rules import LocalRule


@dataclass(frozen=True)
class MemoryPlan:
    """Costs of a workload on a model, traced when they are needed.

    Args:
        model: a hollow model.
        workload: what a device is asked to do.
        base: the execution of plain plans.
        streaming: whether the bottom may be read from files.
        storage: form of the frozen block weights.
    """

    model: SplitModel
    workload: Workload
    base: Execution = PLAIN
    streaming: bool = True
    storage: str = ""

    @cached_property
    def plain(self) -> list[Cost]:
        """Return the costs of the plain step at boundaries 0..L."""
        return self._along(self.base)

    @cached_property
    def options(self) -> list[Cost]:
        """Return the costs of other executions, with the same gradients, at boundaries 0..L."""
        return [
            cost
            for execution in executions(self.workload.batch_size, self.streaming)
            for cost in self._along(execution)
        ]

    def at(self, boundary: int) -> Cost:
        """Return the cost of the plain step at one boundary."""
        return self.traced(self.workload.rule, boundary, self.base)

    def traced(self, rule: LocalRule, boundary: int, execution: Execution) -> Cost:
        """Return the cost of the same work by a rule, at a boundary, in an execution."""
        work = replace(self.workload, rule=rule)
        return replace(trace(self.model, work, boundary, execution), storage=self.storage)

    def _along(self, execution: Execution) -> list[Cost]:
        costs = all_boundaries(self.model, self.workload, execution)
        return [replace(cost, storage=self.storage) for cost in costs]

    def fitting(self, budget: int) -> Cost:
        """Return the plain step with the largest first-order segment that fits, as in the paper.

        Raises:
            HoflError: nothing fits; it names the smallest plan.
        """
        chosen = next((cost for cost in self.plain if cost.peak_bytes <= budget), None)
        if chosen is None:
            least = min(self.plain, key=lambda cost: cost.peak_bytes)
            raise HoflError(
                f"nothing fits {show_bytes(budget)}: the smallest needs "
                f"{show_bytes(least.peak_bytes)} ({least.describe()}). Lower the batch size or the "
                "length, or let the strategy best weigh more than plain steps."
            )
        return chosen

    def shape(self, name: str) -> dict[str, Any]:
        """Return the model's name and the size of the work."""
        return {
            "model": name,
            "batch_size": self.workload.batch_size,
            "seq_len": self.workload.seq_len,
            "tokens": self.workload.tokens,
            "padded_tokens": self.workload.padded().tokens,
        }

    @cached_property
    def padded(self) -> "MemoryPlan":
        """Return the plan of the same texts, each padded to the longest."""
        padded = self.workload.padded()
        return self if padded == self.workload else replace(self, workload=padded)


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
    declared = getattr(config, "dtype", None)
    model = hollow_model(
        config,
        adapter=Lora(rank=rank),
        storage_dtype=DTYPES.get(storage_dtype, torch.float32),
        compute_dtype=DTYPES[compute_dtype],
        form=storage_dtype if storage_dtype in FORMS else None,
        file_dtype=declared if isinstance(declared, torch.dtype) else None,
        surrogate=LocalParts.of(rule, 1).surrogate.parameters(config),
    )
    work = Workload.even(
        rule=rule, batch_size=batch_size, seq_len=seq_len, answer_tokens=answer_tokens
    )
    streaming = bool(model.on_disk) and can_be_streamed(resolve_reference(name))
    return MemoryPlan(model, work, streaming=streaming, storage=storage_dtype)


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
