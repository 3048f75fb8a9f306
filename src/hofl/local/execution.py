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
        checkpoint: blocks per segment of a backward pass; 0 keeps the top's activations whole. Only
            one segment's activations are alive, and every segment but the last runs twice.
        stream_bottom: the bottom's frozen weights are read from the model's files, one block at a
            time, whenever a part of a batch passes it; the top's stay in memory.
    """

    micro_batch: int = 0
    checkpoint: int = 0
    stream_bottom: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise HoflError(f"{name} must not be negative, got {value}.")

    def describe(self) -> str:
        """In words; empty for the plain step."""
        words = [
            f"checkpoints every {self.checkpoint} blocks" if self.checkpoint > 1 else "",
            "checkpoints at every block" if self.checkpoint == 1 else "",
            f"micro-batches of {self.micro_batch}" if self.micro_batch else "",
            "a streamed bottom" if self.stream_bottom else "",
        ]
        return ", ".join(word for word in words if word)


PLAIN = Execution()
LEANEST = Execution(micro_batch=1, checkpoint=1, stream_bottom=True)
