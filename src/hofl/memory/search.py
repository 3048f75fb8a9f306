"""The best plan of a device: exact where it can be, hybrid where it must be.

Best is, within all that the device can do and will spend: the most parameters trained exactly, then
the most trained at all, weights as the run stores them, weights in memory before weights on disk,
the least compute, the fewest bytes of uplink.

There are thousands of plans, so the search tries few. Exact plans come first, from the fastest to
the leanest: backpropagation at once, in parts, with blocks re-run for their gradients, with those
streamed. Each has one number (rows of a part, blocks that are re-run) in which the peak is close to
a straight line: two traces tell where it meets the budget, a third verifies it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hofl.core.sizes import show_bytes
from hofl.local.site import Execution
from hofl.memory.boundaries import all_boundaries
from hofl.memory.capability import Capability, Effort, Headroom
from hofl.memory.live import resident_bytes
from hofl.memory.plan import MemoryPlan
from hofl.memory.trace import uplink_bytes
from hofl.memory.workload import Cost
from hofl.rules import LocalRule
from hofl.variants import EXACT_BITS

FEWER_BITS = (2, 1)
"""Bits per value of an upload that are tried where a device's uplink allows no more."""


def preference(cost: Cost) -> tuple[Any, ...]:
    """Return the order of plans: what is best is least."""
    parts = cost.execution.micro_batch or cost.execution.micro_tokens or math.inf
    return (
        -cost.exact_params,
        -cost.zo_params,
        cost.lossy,
        cost.execution.stream_bottom,
        round(cost.relative_compute, 9),
        cost.uplink_bytes,
        -parts,
        cost.peak_bytes,
    )


@dataclass(frozen=True)
class Search:
    """The search of one device's plan.

    Args:
        memory: costs of the work on a model.
        device: what it can do and will spend.
        effort: the size of a round's work.
        headroom: for the resident set.
    """

    memory: MemoryPlan
    device: Capability
    effort: Effort
    headroom: Headroom

    @cached_property
    def _costs(self) -> dict[tuple[LocalRule, int, Execution], Cost]:
        return {}

    def at(self, rule: LocalRule, boundary: int, execution: Execution) -> Cost:
        """Return the cost of one plan, traced once."""
        key = (rule, boundary, execution)
        if key not in self._costs:
            self._costs[key] = self.memory.traced(rule, boundary, execution)
        return self._costs[key]

    def needed(self, cost: Cost) -> int:
        """Return the memory of a plan, headroom included."""
        return cost.peak_bytes + self.headroom.of(cost)

    def fits(self, cost: Cost) -> bool:
        """Tell whether a plan keeps within everything that the device has."""
        return not any(self.effort.exceeded(cost, self.device, self.headroom))

    def exact(self, rule: LocalRule) -> Cost | None:
        """Return the best plan that trains everything exactly, or None."""
        sent = self._sendable(rule)
        return None if sent is None else self._resident(sent) or self._streamed(sent)

    def _sendable(self, rule: LocalRule) -> LocalRule | None:
        """Return the rule with as many bits of uplink as the device's limit allows, or None."""
        limit = self.device.uplink
        for bits in (rule.uplink_bits, *FEWER_BITS):
            sent = replace(rule, uplink_bits=min(bits, rule.uplink_bits))
            if limit is None or self._upload(sent, 0) <= limit:
                return sent
        return None

    def _resident(self, rule: LocalRule) -> Cost | None:
        """Return exact gradients with all weights in memory: at once, in parts, blocks re-run."""
        model = self.memory.model
        model.keep(0)
        if resident_bytes(model.module) > self.device.memory:
            return None
        lean = self.at(rule, 0, self.parts(1))
        if self.fits(lean):
            return self._largest_parts(lean)
        if rule.traits.exact:
            return self._fewest_rerun(rule, self.parts(1))
        lean = self.at(rule, 0, replace(self.parts(1), checkpoint=1))
        if not self.fits(lean):
            return None
        return self._largest_parts(self._largest_segments(lean, model.num_blocks // 2))

    def _streamed(self, rule: LocalRule) -> Cost | None:
        """Return exact gradients with as few blocks streamed as fit, or None."""
        if not (rule.traits.exact and self.memory.streaming):
            return None
        return self._fewest_rerun(rule, replace(self.parts(1), stream_bottom=True))

    def _fewest_rerun(self, rule: LocalRule, execution: Execution) -> Cost | None:
        """Return the smallest boundary that fits: blocks below it run once more for gradients."""
        blocks = self.memory.model.num_blocks
        lean = self.at(rule, blocks, execution)
        if not self.fits(lean):
            return None
        kept = lambda count: self.at(rule, blocks - count, execution)  # noqa: E731
        return self._largest_parts(self._grown(lean, kept, 0, blocks - 1))

    def inexact(self, rules: list[LocalRule]) -> Iterator[Cost]:
        """Yield the best plan of each rule at the smallest boundary where one fits."""
        for rule in (rule for rule in rules if not rule.traits.exact):
            bits = [b for b in (rule.uplink_bits, EXACT_BITS, *FEWER_BITS) if b <= rule.uplink_bits]
            sent = min(
                (replace(rule, uplink_bits=b) for b in bits),
                key=lambda candidate: (self._first_sent(candidate), -candidate.uplink_bits),
            )
            fitting = (cost.boundary for cost in self._rows(sent) if self._worth(cost))
            boundary = min(fitting, default=None)
            if boundary is not None:
                yield self._cheapest(sent, boundary)

    def _rows(self, rule: LocalRule) -> Iterator[Cost]:
        """Yield every boundary, by the leanest execution and by the fastest in the same parts."""
        blocks = self.memory.model.num_blocks
        if not self.device.backward:
            yield from (self.at(rule, blocks, execution) for execution in self._executions(blocks))
            return
        work = replace(self.memory.workload, rule=rule)
        *_, leanest = self._executions(blocks - 1)
        for execution in (replace(leanest, checkpoint=1), self.parts(1)):
            yield from all_boundaries(self.memory.model, work, execution)

    def _worth(self, cost: Cost) -> bool:
        """Tell whether a plan trains anything, and fits."""
        return bool(cost.exact_params + cost.zo_params) and self.fits(cost)

    def _first_sent(self, rule: LocalRule) -> int:
        """Return the smallest boundary at which the device may run the rule and send its upload."""
        blocks, limit = self.memory.model.num_blocks, self.device.uplink
        for boundary in range(0 if self.device.backward else blocks, blocks):
            if limit is None or self._upload(rule, boundary) <= limit:
                return boundary
        return blocks

    def _upload(self, rule: LocalRule, boundary: int) -> int:
        return uplink_bytes(self.memory.model.layout, rule, boundary)

    def _cheapest(self, rule: LocalRule, boundary: int) -> Cost:
        """Return the fastest execution that fits at a boundary where one does."""
        ways = (self.at(rule, boundary, execution) for execution in self._executions(boundary))
        chosen = next(filter(self.fits, ways))
        if chosen.execution.checkpoint:
            above = self.memory.model.num_blocks - boundary
            chosen = self._largest_segments(chosen, above // 2)
        return self._largest_parts(chosen)

    def _executions(self, boundary: int) -> Iterator[Execution]:
        """Yield executions from the fastest to the leanest."""
        memory, smallest = self.memory, self.parts(1)
        whole = self._bounded(Execution())
        ways = [whole, smallest]
        if boundary < memory.model.num_blocks:
            ways += [replace(whole, checkpoint=1), replace(smallest, checkpoint=1)]
        if boundary and memory.streaming:
            ways.append(replace(ways[-1], stream_bottom=True))
        yield from dict.fromkeys(ways)

    def parts(self, size: int) -> Execution:
        """Return an execution in parts of so many rows, or of as many tokens as these have.

        Tokens where texts differ in length: a part is then as heavy, and short texts fill it up.
        """
        work = self.memory.workload
        longest = max(map(sum, work.examples))
        if size * longest >= work.tokens:
            return self._bounded(Execution())
        if work.tokens == longest * work.batch_size:
            count = -(-work.batch_size // size)
            return self._bounded(Execution(micro_batch=-(-work.batch_size // count)))
        return self._bounded(Execution(micro_tokens=size * longest))

    def _bounded(self, execution: Execution) -> Execution:
        """Return the execution with parts no larger than the configuration asks for."""
        asked, bounds = _cut(self.memory.base), _cut(execution)
        for name, size in bounds.items():
            bounds[name] = min(filter(None, (size, asked[name])), default=0)
        return replace(execution, **bounds)

    def _largest_parts(self, cost: Cost) -> Cost:
        if not any(_cut(cost.execution).values()):
            return cost
        work = self.memory.workload
        most = -(-work.tokens // max(map(sum, work.examples)))

        def at(size: int) -> Cost:
            execution = replace(cost.execution, **_cut(self.parts(size)))
            return self.at(cost.rule, cost.boundary, execution)

        return self._grown(cost, at, 1, most)

    def _largest_segments(self, cost: Cost, most: int) -> Cost:
        def at(size: int) -> Cost:
            execution = replace(cost.execution, checkpoint=size)
            return self.at(cost.rule, cost.boundary, execution)

        return self._grown(cost, at, 1, most)

    def _grown(self, first: Cost, at: Callable[[int], Cost], start: int, most: int) -> Cost:
        """Return the cost of the largest size that fits; ``first`` fits and has size ``start``.

        The line between a size that fits and one that does not says which to try next.
        """
        best, low, high = first, start, most
        if low >= high or self.fits(beyond := at(high)):
            return first if low >= high else beyond
        while high - low > 1:
            rise = max(self.needed(beyond) - self.needed(best), 1)
            room = self.device.memory - self.needed(best)
            size = low + int((high - low) * min(room / rise, 1))
            size = min(max(size, low + 1), high - 1)
            trial = at(size)
            if self.fits(trial):
                best, low = trial, size
            else:
                beyond, high = trial, size
        return best

    def nothing_fits(self, rules: list[LocalRule]) -> str:
        """Say what the smallest plan would need."""
        blocks = self.memory.model.num_blocks
        lean = replace(self.parts(1), stream_bottom=self.memory.streaming)
        costs = [self.at(rule, blocks, lean) for rule in rules if rule.traits.sends_scalars]
        costs += [self.at(rules[0], blocks, lean)] if rules[0].traits.exact else []
        least = min(costs or [self.at(rules[0], 0, lean)], key=self.needed)
        missing = " and ".join(self.effort.exceeded(least, self.device, self.headroom))
        streaming = "" if self.memory.streaming else ", or use a model with safetensors files"
        return (
            f"nothing fits a device with {show_bytes(self.device.memory)}: the smallest plan "
            f"({least.describe()}) needs {missing or 'more'}. Lower the batch size or the "
            f"length, or raise the limits{streaming}."
        )


def _cut(execution: Execution) -> dict[str, Any]:
    """Return how an execution cuts its batches."""
    return {"micro_batch": execution.micro_batch, "micro_tokens": execution.micro_tokens}
