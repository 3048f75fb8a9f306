"""Vectors in 8 or 4 bits per value: stochastic rounding to a grid, one scale per 256 values.

A value x of a chunk with scale s = max |x| / m, m = 127 or 7, is sent as the integer below or
above x / s, each with the probability of the distance to the other: what the receiver makes of it,
s times the integer, has expectation x and is less than s away from it.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

CHUNK = 256
WIDTHS = (32, 8, 4)
"""Bits per value; 32 is float32 as it is."""
_SLAB = 4096 * CHUNK  # values at a time, so that what rounding needs does not grow with the vector


@dataclass(frozen=True)
class Packed:
    """A vector of n values.

    Args:
        codes: uint8 [n] for 8 bits, [ceil(n / 2)] for 4 (the earlier value in the low half).
        scales: float32 [ceil(n / 256)].
    """

    codes: Tensor = field(repr=False)
    scales: Tensor = field(repr=False)


def lengths(size: int, bits: int) -> tuple[int, int]:
    """Number of codes and of scales of a vector of ``size`` values.

    >>> lengths(257, 4)
    (129, 2)
    """
    return -(-size * bits // 8), -(-size // CHUNK)


def pack(values: Tensor, bits: int, rng: np.random.Generator) -> Tensor | Packed:
    """Round a float32 vector [n] to ``bits``; 32 leaves it as it is."""
    if bits == 32:
        return values
    codes, scales = [np.empty(0, np.uint8)], [np.empty(0, np.float32)]
    for start in range(0, len(values), _SLAB):
        rounded, scale = _rounded(values[start : start + _SLAB].numpy(), bits, rng)
        codes.append(rounded if bits == 8 else _in_pairs(rounded))
        scales.append(scale)
    return Packed(torch.from_numpy(np.concatenate(codes)), torch.from_numpy(np.concatenate(scales)))


def unpack(sent: Tensor | Packed, bits: int, size: int) -> Tensor:
    """What the receiver takes a vector of ``size`` values for, float32 [n]."""
    if isinstance(sent, Tensor):
        return sent
    codes = codes_of(sent, bits)[:size].float() - 2 ** (bits - 1)
    return codes * sent.scales.repeat_interleave(CHUNK)[:size]


def codes_of(packed: Packed, bits: int) -> Tensor:
    """One code per value in 1..2^bits - 1, uint8; 2^(bits - 1) stands for 0."""
    if bits == 8:
        return packed.codes
    return torch.stack([packed.codes & 15, packed.codes >> 4], 1).view(-1)


def _rounded(
    values: np.ndarray, bits: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Codes [n] and scales [ceil(n / 256)] of a slab; values that are not finite spoil a scale."""
    half, size = 2 ** (bits - 1), len(values)
    x = np.zeros((-(-size // CHUNK), CHUNK))
    x.reshape(-1)[:size] = values
    largest = np.abs(x).max(1)
    scale = (largest / (half - 1)).astype(np.float32)
    # Rounded up, so that no value lies outside the grid.
    scale = np.where(scale * np.float64(half - 1) < largest, np.nextafter(scale, np.inf), scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.nan_to_num(x / scale[:, None], posinf=0.0, neginf=0.0)
    low = np.floor(ratio)
    code = low + (rng.random(x.shape) < ratio - low) + half
    return code.astype(np.uint8).reshape(-1)[:size], scale.astype(np.float32)


def _in_pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes of 4 bits per byte; an odd last one is paired with a zero value."""
    padded = np.append(codes, np.uint8(8)) if len(codes) % 2 else codes
    return padded[0::2] | (padded[1::2] << 4)
