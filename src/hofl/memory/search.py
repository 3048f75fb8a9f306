"""The best plan of a device: exact where it can be, hybrid where it must be.

Best is, within all that the device can do and will spend: the most parameters trained exactly, then
the most trained at all, weights as the run stores them, weights in memory before weights on disk,
the least time (compute, and what small parts and reading add to it), the fewest bytes of uplink.

There are thousands of plans, so the search tries few. Exact plans come first, from the fastest to
the leanest: backpropagation at once, in parts, with blocks re-run for their gradients, with those
streamed. Each has one number (rows of a part, blocks that are re-run) in which the peak is close to
a straight line: two traces tell where it meets the budget, a third verifies it. Re-running blocks
makes room for larger parts, so of short texts several sizes of parts are weighed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from hofl.core.sizes import show_bytes
from hofl.local.site import Execution
from hofl.memory.boundaries import all_boundaries
from hofl.memory.capability import Capability, Effort, Headroom
from hofl.memory.cutting import bounded, cut_of, in_parts, most_rows
from hofl.memory.live import resident_bytes
from hofl.memory.plan import MemoryPlan
from hofl.memory.trace import uplink_bytes
from hofl.memory.workload import Cost
from hofl.rules import LocalRule
from hofl.variants import EXACT_BITS

FEWER_BITS = (2, 1)
"""Bits per value of an upload that are tried where a device's uplink allows no more."""
WORTH_A_LOOK = 0.05
"""The share of a step's time that larger parts must be able to save for them to be tried."""


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

    def in_memory(self, cost: Cost) -> bool:
        """Tell whether a plan keeps within the device's memory."""
        return self.needed(cost) <= self.device.memory

    def fits(self, cost: Cost) -> bool:
        """Tell whether a plan keeps within everything that the device has."""
        return not any(self.effort.exceeded(cost, self.device, self.headroom))

    def slowness(self, cost: Cost) -> float:
        """Return the time of a plan's local step, in backpropagations through all blocks."""
        return self.effort.slowness(cost, self.device)

    def preference(self, cost: Cost) -> tuple[Any, ...]:
        """Return the order of plans: what is best is least."""
        return (
            -cost.exact_params,
            -cost.zo_params,
            cost.execution.stream_bottom,
            round(self.slowness(cost), 9),
            cost.uplink_bytes,
            cost.peak_bytes,
        )

    def exact(self, rules: list[LocalRule]) -> Cost | None:
        """Return the best plan that trains everything exactly, or None; the first rule may.

        The fastest that memory allows is looked for; if that one is too slow, all are.
        """
        hopeless = self.effort.rules_out_exact(self.device)
        sent = None if hopeless else self._sendable(rules[0])
        plans = () if sent is None else (find(sent) for find in (self._resident, self._streamed))
        return next((plan for plan in plans if plan is not None and self.fits(plan)), None)

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

        def kept(execution: Execution, least: int) -> Cost | None:
            if not least and self.in_memory(whole := self.at(rule, 0, execution)):
                return whole
            if rule.traits.exact:
                return self._fewest_rerun(rule, execution, least)
            lean = self.at(rule, 0, replace(execution, checkpoint=1))
            most = model.num_blocks // 2
            return self._largest_segments(lean, most) if self.in_memory(lean) else None

        return self._fastest(kept)

    def _streamed(self, rule: LocalRule) -> Cost | None:
        """Return exact gradients with as few blocks streamed as fit, or None."""
        if not (rule.traits.exact and self.memory.streaming):
            return None

        def streamed(execution: Execution, least: int) -> Cost | None:
            return self._fewest_rerun(rule, replace(execution, stream_bottom=True), least)

        return self._fastest(streamed)

    def _fastest(self, plan: Callable[[Execution, int], Cost | None]) -> Cost | None:
        """Return the fastest of the plans that are found for parts of 1, 2, 4, ... rows.

        Larger parts leave room for no fewer re-run blocks: ``plan`` gets the least boundary.
        """
        most = most_rows(self.memory.workload)
        doubled = (1 << power for power in range((most - 1).bit_length() + 1))
        best, candidate, rows = None, None, 0
        for size in doubled:
            candidate = plan(self.parts(size), 0 if candidate is None else candidate.boundary)
            if candidate is None:
                break
            if best is None or self.slowness(candidate) < self.slowness(best):
                best, rows = candidate, size
            # All that larger ones save is parts.
            if self.slowness(_alone(candidate)) > (1 - WORTH_A_LOOK) * self.slowness(best):
                break
        return None if best is None else self._largest_parts(best, rows)

    def _fewest_rerun(self, rule: LocalRule, execution: Execution, least: int) -> Cost | None:
        """Return the smallest boundary in memory: blocks below it run once more for gradients."""
        blocks = self.memory.model.num_blocks
        lean = self.at(rule, blocks, execution)
        if not self.in_memory(lean):
            return None
        kept = lambda count: self.at(rule, blocks - count, execution)  # noqa: E731
        return self._grown(lean, kept, 0, blocks - max(least, 1))

    def inexact(self, rules: list[LocalRule]) -> Cost | None:
        """Return the best of the rules' plans at their smallest boundaries, or None."""
        return min(self._inexact(rules), key=self.preference, default=None)

    def _inexact(self, rules: list[LocalRule]) -> Iterator[Cost]:
        for rule in (rule for rule in rules if not rule.traits.exact):
            bits = [b for b in (rule.uplink_bits, EXACT_BITS, *FEWER_BITS) if b <= rule.uplink_bits]
            sent = min(
                (replace(rule, uplink_bits=b) for b in bits),
                key=lambda candidate: (self._first_sent(candidate), -candidate.uplink_bits),
            )
            costs = (self._cheapest(sent, boundary) for boundary in self._boundaries(sent))
            yield from islice(filter(None, costs), 1)

    def _boundaries(self, rule: LocalRule) -> list[int]:
        """Return where the leanest execution fits, or the fastest in the same parts, in order.

        Time is looked at as if there were one part. A device that cannot run backward has only L.
        """
        model, work = self.memory.model, replace(self.memory.workload, rule=rule)
        if not self.device.backward:
            return [model.num_blocks]
        *_, leanest = self._executions(model.num_blocks - 1)
        executions = (replace(leanest, checkpoint=1), self.parts(1))
        costs = (cost for way in executions for cost in all_boundaries(model, work, way))
        return sorted({cost.boundary for cost in costs if self._worth(_alone(cost))})

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

    def _cheapest(self, rule: LocalRule, boundary: int) -> Cost | None:
        """Return the fastest execution that fits at a boundary, or None."""
        ways = (self.at(rule, boundary, execution) for execution in self._executions(boundary))
        chosen = next(filter(self.in_memory, ways), None)
        if chosen is None:
            return None
        if chosen.execution.checkpoint:
            above = self.memory.model.num_blocks - boundary
            chosen = self._largest_segments(chosen, above // 2)
        chosen = self._largest_parts(chosen)
        return chosen if self._worth(chosen) else None

    def _executions(self, boundary: int) -> Iterator[Execution]:
        """Yield executions from the fastest to the leanest."""
        memory, smallest = self.memory, self.parts(1)
        whole = bounded(Execution(), memory.base)
        ways = [whole, smallest]
        if boundary < memory.model.num_blocks:
            ways += [replace(whole, checkpoint=1), replace(smallest, checkpoint=1)]
        if boundary and memory.streaming:
            ways.append(replace(ways[-1], stream_bottom=True))
        yield from dict.fromkeys(ways)

    def parts(self, rows: int) -> Execution:
        """Return an execution in parts of so many rows, or of as many tokens as these have."""
        return in_parts(self.memory.workload, rows, self.memory.base)

    def _largest_parts(self, cost: Cost, rows: int = 1) -> Cost:
        """Return the same plan in the largest parts in memory; it has parts of so many rows."""
        if not any(cut_of(cost.execution).values()):
            return cost

        def at(size: int) -> Cost:
            execution = replace(cost.execution, **cut_of(self.parts(size)))
            return self.at(cost.rule, cost.boundary, execution)

        return self._grown(cost, at, rows, most_rows(self.memory.workload))

    def _largest_segments(self, cost: Cost, most: int) -> Cost:
        def at(size: int) -> Cost:
            execution = replace(cost.execution, checkpoint=size)
            return self.at(cost.rule, cost.boundary, execution)

        return self._grown(cost, at, 1, most)

    def _grown(self, first: Cost, at: Callable[[int], Cost], start: int, most: int) -> Cost:
        """Return the cost of the largest size in memory; ``first`` is, and has size ``start``.

        The line between a size that fits and one that does not says which to try next.
        """
        best, low, high = first, start, most
        if low >= high or self.in_memory(beyond := at(high)):
            return first if low >= high else beyond
        while high - low > 1:
            rise = max(self.needed(beyond) - self.needed(best), 1)
            room = self.device.memory - self.needed(best)
            size = low + int((high - low) * min(room / rise, 1))
            size = min(max(size, low + 1), high - 1)
            trial = at(size)
            if self.in_memory(trial):
                best, low = trial, size
            else:
                beyond, high = trial, size
        return best

    def nothing_fits(self, rules: list[LocalRule]) -> str:
        """Say what the smallest plan would need; the fastest, where the smallest takes too long."""
        blocks = self.memory.model.num_blocks
        lean = replace(self.parts(1), stream_bottom=self.memory.streaming)
        costs = [self.at(rule, blocks, lean) for rule in rules if rule.traits.sends_scalars]
        costs += [self.at(rules[0], blocks, lean)] if rules[0].traits.exact else []
        closest = min(costs or [self.at(rules[0], 0, lean)], key=self.needed)
        kind = "smallest"
        if self.in_memory(closest) and self.effort.takes_too_long(closest, self.device):
            kind, top = "fastest", blocks - self.device.backward  # the last that can be trained
            fast = [self.at(rules[-1], top, execution) for execution in self._executions(top)]
            closest = min(filter(self.in_memory, [closest, *fast]), key=self.slowness)
        missing = " and ".join(self.effort.exceeded(closest, self.device, self.headroom))
        streaming = "" if self.memory.streaming else ", or use a model with safetensors files"
        return (
            f"nothing fits a device with {show_bytes(self.device.memory)}: the {kind} plan "
            f"({closest.describe()}) needs {missing or 'more'}. Lower the batch size or the "
            f"length, or raise the limits{streaming}."
        )


def _alone(cost: Cost) -> Cost:
    """Return the cost as if the batch were one part."""
    return replace(cost, parts=1, read_bytes=cost.read_bytes // cost.parts)
