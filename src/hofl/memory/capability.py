"""What a device can do and will spend, and whether a plan keeps within it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hofl.core.errors import HoflError
from hofl.core.sizes import parse_disk, parse_rate, parse_uplink, show_bytes

if TYPE_CHECKING:  # configurations know strategies by name without the model libraries
    from hofl.memory.workload import Cost

PART_TOKENS = 24
"""What a part of a batch costs beside its tokens (weights are read, kernels are started), in tokens
of work. Measured on CPUs (docs/log.md): 21 to 31 on SmolLM2-135M, 46 on a model of 15M."""
FLOPS_PER_BYTE = 100.0
"""Operations that a device of unknown speeds could do while it reads a byte from its disk, such as
50 GFLOPS beside 500 MB/s. It orders plans, and estimates no time."""


@dataclass(frozen=True)
class Headroom:
    """What the resident set takes beyond the live tensors that a plan counts.

    Free memory that the allocator keeps between tensors of changing sizes, buffers of the matrix
    library, Python's own objects, the tokenizer. The least round numbers that cover the rows of
    docs/results/headroom.json, which ``tools/measure_headroom.py`` measures.

    Args:
        fixed: bytes of any step.
        share: of what a plan holds beside the frozen weights, which are allocated once.
    """

    fixed: int = 48 * 2**20
    share: float = 0.4

    def of(self, cost: "Cost") -> int:
        """Return the bytes to leave for a plan."""
        return self.of_working(cost.working_bytes)

    def of_working(self, size: int) -> int:
        """Return the bytes to leave for a plan that holds so much beside the frozen weights."""
        return self.fixed + round(self.share * size)


MEASURED, NO_HEADROOM = Headroom(), Headroom(0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Capability:
    """A device: what it can do, and what it will spend on a round.

    Args:
        memory: bytes for the model and its steps, beside the interpreter and its libraries.
        backward: whether it can run a block backward.
        disk: free bytes for weights to stream; None is enough for the model.
        read_speed: bytes per second from that disk; None is unknown.
        flops: floating-point operations per second; None is unknown.
        seconds: that a round's work may take; None is any time.
        uplink: bytes that a round's upload may have; None is any number.
    """

    memory: int
    backward: bool = True
    disk: int | None = None
    read_speed: float | None = None
    flops: float | None = None
    seconds: float | None = None
    uplink: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "disk", "read_speed", "flops", "seconds", "uplink"):
            value, least = getattr(self, name), 0 if name == "disk" else 1e-9
            if value is not None and not least <= value < math.inf:
                shown, got = ("gflops", value / 1e9) if name == "flops" else (name, value)
                allowed = "at least 0" if name == "disk" else "more than 0"
                raise HoflError(f"a device's {shown} must be {allowed} and finite, got {got:g}.")
        if self.seconds is not None and self.flops is None:
            raise HoflError(
                "a limit of seconds needs the device's speed: give gflops, such as 50, or let "
                "hofl device measure it."
            )


@dataclass(frozen=True)
class Effort:
    """The size of a round's work on a model, to turn a plan's compute into seconds.

    Args:
        flops: of backpropagation through all blocks in one local step.
        local_steps: E.
        streamable: bytes of all frozen block weights in the model's files.
        tokens: of the batch of a local step.
    """

    flops: float
    local_steps: int
    streamable: int
    tokens: int

    def computing(self, cost: "Cost") -> float:
        """Return the compute of a local step with what small parts add to it."""
        return cost.relative_compute * (1 + PART_TOKENS * cost.parts / self.tokens)

    def slowness(self, cost: "Cost", device: Capability) -> float:
        """Return the time of a local step, in backpropagations through all blocks."""
        operations = FLOPS_PER_BYTE
        if device.flops is not None and device.read_speed is not None:
            operations = device.flops / device.read_speed
        return self.computing(cost) + cost.read_bytes * operations / self.flops

    def rules_out_exact(self, device: Capability) -> bool:
        """Tell whether backpropagation alone takes longer than the device will spend."""
        if device.seconds is None or device.flops is None:
            return False
        return self.local_steps * self.flops / device.flops > device.seconds

    def seconds(self, cost: "Cost", device: Capability) -> float | None:
        """Estimate the seconds of a round's local steps; None where the speed is not known.

        Reading from a disk of unknown speed is not counted.
        """
        if device.flops is None:
            return None
        reading = cost.read_bytes / (device.read_speed or math.inf)
        return self.local_steps * (self.computing(cost) * self.flops / device.flops + reading)

    def exceeded(
        self, cost: "Cost", device: Capability, headroom: Headroom = NO_HEADROOM
    ) -> Iterator[str]:
        """Yield what a plan needs more of than the device has, in words."""
        needed = cost.peak_bytes + headroom.of(cost)
        if needed > device.memory:
            yield f"{show_bytes(needed)} of memory"
        if device.uplink is not None and cost.uplink_bytes > device.uplink:
            yield f"{show_bytes(cost.uplink_bytes)} of uplink"
        stored = cost.execution.stream_bottom and device.disk is not None
        if stored and self.streamable > (device.disk or 0):
            yield f"{show_bytes(self.streamable)} of disk"
        if self.takes_too_long(cost, device):
            seconds = self.seconds(cost, device) or 0.0
            yield f"{seconds:.{0 if seconds >= 10 else 2}f} s per round"

    def takes_too_long(self, cost: "Cost", device: Capability) -> bool:
        """Tell whether a round takes longer than the device will spend."""
        seconds = self.seconds(cost, device)
        return device.seconds is not None and seconds is not None and seconds > device.seconds


def capability_of(values: dict[str, Any], memory: int) -> Capability:
    """Return the device that a table of plain values describes, with its memory in bytes."""
    speed, gflops = values.get("read_speed"), values.get("gflops")
    uplink, disk = values.get("uplink"), values.get("disk")
    return Capability(
        memory=memory,
        backward=values.get("backward", True),
        disk=None if disk is None else parse_disk(disk),
        read_speed=None if speed is None else parse_rate(speed),
        flops=None if gflops is None else gflops * 1e9,
        seconds=values.get("seconds"),
        uplink=None if uplink is None else parse_uplink(uplink),
    )


def memory_alone(device: Capability) -> int:
    """Return the memory of a device that is planned by nothing else; refuse other limits."""
    stated = [name for name in ("disk", "seconds", "uplink") if getattr(device, name) is not None]
    stated += [] if device.backward else ["no backward"]
    if stated:
        raise HoflError(
            f"the strategy paper plans by memory alone, and a device has other limits "
            f"({', '.join(stated)}): use the strategy best with a method such as hofl, or give "
            "memory only."
        )
    return device.memory
