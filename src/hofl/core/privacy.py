"""Local differential privacy: what leaves a device is clipped and noised before it leaves.

A participation releases the scalars of each of its E steps, [q] at a time, and the difference of
its first-order segment once. Each release is clipped to an L2 norm C, so that it differs by at most
2 C whatever data the device holds, and Gaussian noise of standard deviation z * 2 C is added. The
device itself continues with the noised scalars: its bottom is a function of released numbers
alone, and the server replays it bit for bit.

The noise is the device's secret. It comes from the operating system, not from the run's seed, which
the server knows; so a run with noise cannot be repeated.
"""

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hofl.core.errors import HoflError

SLAB = 2**20
"""Values noised at a time, so that the noise needs no second vector of full length."""

LARGEST = 1e300
"""Of any setting: comparing with it also refuses integers that are too big for a float."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """How a device protects a participation.

    Args:
        noise: z, the noise's standard deviation in units of what one release can differ by.
        scalar_clip: C of one step's scalars [q].
        difference_clip: C of the difference [d_FO].
    """

    noise: float
    scalar_clip: float
    difference_clip: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) not in (int, float) or not 0 < value <= LARGEST:
                raise HoflError(f"privacy.{name} must be positive and finite, got {value!r:.40}.")

    def scalars(self, values: Tensor) -> Tensor:
        """Return one step's scalars as they may be used and sent, [q]."""
        return released(values, self.scalar_clip, self.noise)

    def difference(self, values: Tensor) -> Tensor:
        """Return the difference as it may be sent, [d_FO]."""
        return released(values, self.difference_clip, self.noise)


def released(values: Tensor, clip: float, noise: float) -> Tensor:
    """Scale values down to an L2 norm of at most ``clip`` and add noise to each, float32.

    Whether numbers were finite would reveal something about the data: if not, noise alone is sent.
    """
    norm = torch.linalg.vector_norm(values, dtype=torch.float64).item()
    share = min(1.0, clip / norm) if norm > 0 else 1.0
    kept = values.double() * share if math.isfinite(norm) else torch.zeros(len(values)).double()
    for start in range(0, len(kept), SLAB):
        part = kept[start : start + SLAB]
        part += torch.from_numpy(secret_normals(len(part))) * (noise * 2 * clip)
    return kept.float()


def secret_normals(size: int) -> np.ndarray:
    """Draw standard normals from the operating system's entropy, float64 [size] (Box-Muller)."""
    half = (size + 1) // 2
    words = np.frombuffer(os.urandom(16 * half), dtype=np.uint64).reshape(2, half)
    radius, angle = ((words >> np.uint64(11)) + 0.5) / 2.0**53  # in (0, 1)
    radius, angle = np.sqrt(-2 * np.log(radius)), 2 * np.pi * angle
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
