"""Vectors in 8, 4, 2 or 1 bits per value: stochastic rounding, one scale per 256 values.

A value x of a chunk with scale s = max |x| / m, m = 127, 7 or 1, is sent as the integer below or
above x / s, each with the probability of the distance to the other: what the receiver computes,
s times the integer, has expectation x and differs from x by less than s. In 2 bits the integers are
-1, 0 and 1. In 1 bit they are -1 and 1, so that the error may reach 2 s.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

CHUNK = 256
_SLAB = 4096 * CHUNK  # values at a time, so that rounding's memory does not grow with the vector


@dataclass(frozen=True)
class Packed:
    """A vector of n values.

    Args:
        codes: uint8 [ceil(n bits / 8)]; of the values in a byte, the earlier are in the lower bits.
        scales: float32 [ceil(n / 256)].
    """

    codes: Tensor = field(repr=False)
    scales: Tensor = field(repr=False)


def lengths(size: int, bits: int) -> tuple[int, int]:
    """Return the numbers of codes and of scales of a vector of ``size`` values.

    >>> lengths(257, 4)
    (129, 2)
    """
    return -(-size * bits // 8), -(-size // CHUNK)


def pack(values: Tensor, bits: int, rng: np.random.Generator) -> Tensor | Packed:
    """Round a float32 vector [n] to ``bits``; 32 returns it unchanged."""
    if bits == 32:
        return values
    codes, scales = [np.empty(0, np.uint8)], [np.empty(0, np.float32)]
    for start in range(0, len(values), _SLAB):
        rounded, scale = _rounded(values[start : start + _SLAB].numpy(), bits, rng)
        codes.append(_in_bytes(rounded, bits))
        scales.append(scale)
    return Packed(torch.from_numpy(np.concatenate(codes)), torch.from_numpy(np.concatenate(scales)))


def unpack(sent: Tensor | Packed, bits: int, size: int) -> Tensor:
    """Return the vector of ``size`` values that was sent, float32 [n]."""
    if isinstance(sent, Tensor):
        return sent
    steps = codes_of(sent, bits)[:size].float() - 2 ** (bits - 1)
    grid = steps if bits > 1 else 2 * steps + 1
    return grid * sent.scales.repeat_interleave(CHUNK)[:size]


def codes_of(packed: Packed, bits: int) -> Tensor:
    """Return one code per value, uint8; 2^(bits - 1) stands for 0, or for 1 where bits is 1."""
    if bits == 8:
        return packed.codes
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.codes.device)
    return ((packed.codes[:, None] >> shifts) & (2**bits - 1)).view(-1)


def outside_grid(packed: Packed, bits: int) -> bool:
    """Tell whether a code has no value: grids are symmetric, so the least code is not in use."""
    return bits > 1 and bool((codes_of(packed, bits) == 0).any())


def _rounded(
    values: np.ndarray, bits: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [n] and scales [ceil(n / 256)] of a slab; non-finite values spoil a scale."""
    half, size = 2 ** (bits - 1), len(values)
    top = max(half - 1, 1)
    x = np.zeros((-(-size // CHUNK), CHUNK))
    x.reshape(-1)[:size] = values
    largest = np.abs(x).max(1)
    scale = (largest / top).astype(np.float32)
    # Rounded up, so that no value lies outside the grid.
    scale = np.where(scale * np.float64(top) < largest, np.nextafter(scale, np.inf), scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.nan_to_num(x / scale[:, None], posinf=0.0, neginf=0.0)
    place = ratio if bits > 1 else (ratio - 1) / 2  # from 1 down to -1 in one step
    low = np.floor(place)
    code = low + (rng.random(x.shape) < place - low) + half
    return code.astype(np.uint8).reshape(-1)[:size], scale.astype(np.float32)


def _in_bytes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Put 8 / bits codes in each byte; a last one that is not full is filled with 2^(bits - 1)."""
    each = 8 // bits
    full = np.full(-(-len(codes) // each) * each, 2 ** (bits - 1), np.uint8)
    full[: len(codes)] = codes
    shifted = full.reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1)
