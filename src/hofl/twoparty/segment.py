"""A trained segment with its optimizer's moments: what a role carries from step to step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hofl.core.errors import HoflError
from hofl.core.optim import Moments, Optimizer


@dataclass
class Segment:
    """Parameters w [n] and moments; both persist over all steps.

    Args:
        w: the parameters, float32.
        moments: of the optimizer.
    """

    w: Tensor
    moments: Moments = field(repr=False)

    @classmethod
    def start(cls, w: Tensor, optimizer: Optimizer) -> "Segment":
        """Return the segment at its start."""
        return cls(w.clone(), optimizer.init(w))

    def copy(self) -> "Segment":
        """Return a segment of its own with the same values."""
        return Segment.from_tensors({name: value.clone() for name, value in self.tensors().items()})

    def step(self, g: Tensor, optimizer: Optimizer) -> None:
        """Take one optimizer step; uses up g."""
        with torch.no_grad():
            optimizer.step(self.w, g, self.moments)

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it as tensors, for a checkpoint."""
        decays = torch.tensor([self.moments.decay1, self.moments.decay2], dtype=torch.float64)
        parts = {"w": self.w, "m": self.moments.m, "v": self.moments.v, "decays": decays}
        return {name: tensor for name, tensor in parts.items() if tensor is not None}

    @property
    def size_bytes(self) -> int:
        """Bytes of parameters and moments."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Segment":
        """Read :meth:`tensors`."""
        decay1, decay2 = tensors["decays"].tolist()
        moments = Moments(tensors.get("m"), tensors.get("v"), decay1, decay2)
        return cls(tensors["w"], moments)


def learning_rate(value: float | None) -> float | None:
    """Return the server's own learning rate; refuse what cannot be one."""
    if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
        raise HoflError(f"server_lr must be a positive number, got {value!r:.40}.")
    return value
