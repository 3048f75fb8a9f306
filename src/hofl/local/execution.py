"""How a device runs its local steps: the same gradients in less memory.

An execution is the device's own choice and never part of the server's plan.
"""

from dataclasses import dataclass

from hofl.errors import HoflError


@dataclass(frozen=True)
class Execution:
    """Ways to fit a step into memory; the defaults are the plain step.

    Args:
        micro_batch: examples at a time; 0 is the whole batch. Gradients and scalars are the
            weighted sums over the parts, equal to the whole batch's up to FP32 rounding.
    """

    micro_batch: int = 0

    def __post_init__(self) -> None:
        if self.micro_batch < 0:
            raise HoflError(f"micro_batch must not be negative, got {self.micro_batch}.")

    def describe(self) -> str:
        """In words; empty for the plain step."""
        return f"micro-batches of {self.micro_batch}" if self.micro_batch else ""


PLAIN = Execution()
