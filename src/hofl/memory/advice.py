"""What a device should run within its budget, what it takes, and what the alternatives cost."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tomli_w

from hofl.core.sizes import show_bytes
from hofl.memory.alternatives import Alternative, alternatives, planner_for
from hofl.memory.capability import Capability, capability_of
from hofl.memory.device import budget_bytes
from hofl.memory.planner import Planner
from hofl.memory.strategies import check_method, strategy_named
from hofl.memory.workload import Cost


@dataclass(frozen=True)
class Advice:
    """What was planned for a device.

    Args:
        model: its name.
        planner: of the model and the workload.
        device: what it can do; None where no budget was given.
        chosen: the plan for it; None without a budget, and where client and server share a model.
        toml: the part of a configuration in which such devices are planned so; None without.
    """

    model: str
    planner: Planner
    device: Capability | None
    chosen: Cost | None
    toml: str | None

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """The plan and other ways to take part."""
        return alternatives(self.planner, self.device, self.chosen)

    @property
    def recommendation(self) -> str:
        """What to do and what it takes, in one sentence; empty without a budget."""
        if self.chosen is None:
            return ""
        cost, planner = self.chosen, self.planner
        total, exact = planner.memory.model.layout.size, cost.exact_params
        what = "Train all parameters exactly"
        if exact < total:
            what = f"Train {exact:,} of {total:,} parameters exactly"
            what += f" and {cost.zo_params:,} by zeroth order" if cost.zo_params else ""
        headroom = planner.headroom.of(cost)
        left = f"plus {show_bytes(headroom)} of headroom" if headroom else "without headroom"
        return (
            f"{what}: {cost.describe()}. Peak {show_bytes(cost.peak_bytes)} {left}, "
            f"{cost.relative_compute:.2f} "
            f"times the compute of backpropagation, {show_bytes(cost.uplink_bytes)} of uplink a "
            "round."
        )

    def facts(self, every_boundary: bool = False) -> dict[str, Any]:
        """Return all of it as plain values."""
        memory = self.planner.memory
        facts = {
            **memory.shape(self.model),
            "chosen": None if self.chosen is None else self._with_headroom(self.chosen),
            "alternatives": [
                {"name": row.name, "fits": row.fits, **self._with_headroom(row.cost)}
                for row in self.alternatives
            ],
        }
        if every_boundary:
            facts["boundaries"] = [cost.facts() for cost in memory.plain]
            facts["options"] = [cost.facts() for cost in memory.options]
        return facts

    def _with_headroom(self, cost: Cost) -> dict[str, Any]:
        return {**cost.facts(), "headroom_bytes": self.planner.headroom.of(cost)}


def plan(
    model: str,
    budget: str | None = None,
    *,
    batch_size: int = 16,
    seq_len: int = 1024,
    backward: bool = True,
    disk: str | None = None,
    read_speed: str | None = None,
    gflops: float | None = None,
    seconds: float | None = None,
    uplink: str | None = None,
    strategy: str = "best",
    method: str = "hofl",
    q: int | None = None,
    optimizer: str | None = None,
    rank: int = 8,
    storage_dtype: str = "bfloat16",
    compute_dtype: str = "bfloat16",
    answer_tokens: int = 0,
) -> Advice:
    """Plan a device from a model's configuration alone: no weights and no GPU are needed.

    Args:
        model: built-in model, folder or hub id.
        budget: memory of the device, such as 12GiB, or free; without it only costs are given.
        batch_size: B, examples per step.
        seq_len: T, tokens per example.
        backward: whether the device can run a block backward.
        disk: free disk for streamed weights; 0 is none.
        read_speed: of that disk, such as 500MiB/s.
        gflops: speed of the device.
        seconds: most that a round may take.
        uplink: most that an upload may have, such as 1MiB.
        strategy: ``best`` is exact where it can be, ``paper`` plain hybrid steps.
        method: whose local step.
        q: directions per step.
        optimizer: adamw or sgd.
        rank: of the LoRA adapter.
        storage_dtype: of the frozen weights.
        compute_dtype: of the activations.
        answer_tokens: tokens to predict per example; 0 is one label word.
    """
    choice = strategy_named(strategy)
    limits = {
        "backward": backward,
        "disk": disk,
        "read_speed": read_speed,
        "gflops": gflops,
        "seconds": seconds,
        "uplink": uplink,
    }
    device = None if budget is None else capability_of(limits, budget_bytes(budget))
    changes = {"q": q, "optimizer": optimizer}
    planner = planner_for(
        model,
        method,
        {name: value for name, value in changes.items() if value is not None},
        batch_size=batch_size,
        seq_len=seq_len,
        answer_tokens=answer_tokens,
        rank=rank,
        storage_dtype=storage_dtype,
        compute_dtype=compute_dtype,
    )
    # In a split run a budget is for the client's half: the costs of the roles say what fits.
    split = planner.method.splits and choice.own_rules
    if budget is None or device is None or split:
        return Advice(model, planner, device, None, None)
    check_method(strategy, planner.method)
    planner = replace(planner, headroom=choice.headroom)
    chosen = choice.choose(planner, device)
    toml = _toml(model, budget, limits, strategy, chosen.storage)
    return Advice(model, planner, device, chosen, toml)


def _toml(
    model: str, budget: str, limits: dict[str, Any], strategy: str, storage_dtype: str
) -> str:
    """Return the part of a configuration in which devices of this kind are planned so."""
    given = {k: v for k, v in limits.items() if v is not None and v is not True}
    values = {
        "model": {"name": model, "storage_dtype": storage_dtype},
        "fleet": {"strategy": strategy, "devices": [{"memory": budget, **given}]},
    }
    return tomli_w.dumps(values)
