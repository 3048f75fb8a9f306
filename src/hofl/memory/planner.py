"""The planner of devices: one for everything that changes memory, time, bytes or exactness."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hofl.core.errors import HoflError
from hofl.memory.capability import MEASURED, Capability, Effort, Headroom
from hofl.memory.hollow import streamable_bytes
from hofl.memory.plan import MemoryPlan
from hofl.memory.search import Search
from hofl.memory.workload import Cost
from hofl.methods import Method


@dataclass(frozen=True)
class Planner:
    """Plans devices for one model and one workload.

    Args:
        memory: of the model as the run stores it.
        method: says which rules a device may run.
        headroom: for the resident set.
        forms: other forms in which a device may store the blocks, each made when it is needed: to
            train everything exactly, or, without backward passes, to train at all.
    """

    memory: MemoryPlan
    method: Method
    headroom: Headroom = MEASURED
    forms: Mapping[str, Callable[[], MemoryPlan]] = field(default_factory=dict)

    @cached_property
    def effort(self) -> Effort:
        """The size of a round's work."""
        model, work = self.memory.model, self.memory.workload
        model.keep(0)
        blocks = [p for block in model.blocks for p in block.parameters() if not p.requires_grad]
        weights = sum(p.numel() for p in blocks)
        # A forward pass takes two operations for each weight and token, a backward pass through
        # frozen weights the same.
        flops = 4.0 * weights * work.tokens
        return Effort(flops, work.rule.local_steps, streamable_bytes(model), work.tokens)

    def best(self, device: Capability) -> Cost:
        """Return the best plan of a device.

        Raises:
            HoflError: nothing fits; it names the smallest plan.
        """
        rules = self.method.rules(device.backward)
        if not rules:
            raise HoflError(
                "a device without backward passes needs a method whose devices may have bottoms of "
                "their own, such as hofl."
            )
        search = Search(self.memory, device, self.effort, self.headroom)
        first = Search.exact if device.backward else Search.inexact
        chosen = first(search, rules)
        for form, made in self.forms.items() if chosen is None else ():
            cost = first(replace(search, memory=made()), rules)
            if cost is not None:
                return replace(cost, storage=form, lossy=True)
        chosen = chosen or (search.inexact(rules) if device.backward else None)
        if chosen is None:
            raise HoflError(search.nothing_fits(rules))
        return chosen
