"""Where one local step takes place, and how the device runs it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hofl.core.directions import Directions
from hofl.core.errors import HoflError

if TYPE_CHECKING:  # the algorithm imports this file, and the server has no model
    from hofl.models.split import SplitModel


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a device runs its steps: the same gradients in less memory.

    The device chooses it; the server's round plan does not contain it. The defaults are the plain
    step.

    Args:
        micro_batch: examples at a time; 0 is the whole batch. Gradients and scalars are the
            weighted sums over the parts, equal to the whole batch's up to FP32 rounding.
        micro_tokens: tokens at a time, at least one example; 0 is no bound. A bound on tokens is a
            bound on memory, whatever the lengths of the texts.
        checkpoint: blocks per segment of a backward pass; 0 keeps the top's activations whole. Only
            one segment's activations are alive, and every segment but the last runs twice.
        stream_bottom: the bottom's frozen weights are read from the model's files, one block at a
            time, for every part of a batch; the top's stay in memory.
    """

    micro_batch: int = 0
    micro_tokens: int = 0
    checkpoint: int = 0
    stream_bottom: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise HoflError(f"{name} must not be negative, got {value}.")

    def describe(self) -> str:
        """Describe in words; empty for the plain step."""
        words = [
            f"checkpoints every {self.checkpoint} blocks" if self.checkpoint > 1 else "",
            "checkpoints at every block" if self.checkpoint == 1 else "",
            f"micro-batches of {self.micro_batch}" if self.micro_batch else "",
            f"micro-batches of {self.micro_tokens} tokens" if self.micro_tokens else "",
            "a streamed bottom" if self.stream_bottom else "",
        ]
        return ", ".join(word for word in words if word)


PLAIN = Execution()
LEANEST = Execution(micro_batch=1, checkpoint=1, stream_bottom=True)


@dataclass(frozen=True)
class Site:
    """One local step of one participation, the same for all parts of its batch.

    Args:
        model: the split model, at the anchor w^e.
        boundary: b.
        directions: those of the participation.
        step: e.
        execution: how the device runs it.
    """

    model: "SplitModel"
    boundary: int
    directions: Directions
    step: int
    execution: Execution = PLAIN
