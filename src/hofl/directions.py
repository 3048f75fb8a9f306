"""Seeded Gaussian directions u ~ N(0, I), Eq. (5), equal bit for bit on every machine.

A direction is defined by integers and a table alone: Philox words, keyed by (run seed, round,
stream, local step e, direction j, parameter index), are read as little-endian 16-bit integers, and
each integer picks one of 65,536 standard-normal quantiles from ``normal_table.npy``. No logarithm,
cosine or vector width is involved, so client and server agree whatever their hardware.

The combination (1/q) sum_j s_j u_j uses one rounding per operation (no fused multiply-add), which
IEEE 754 fixes too: given the same scalars, both sides get the same gradient estimate.
"""

import hashlib
import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from hofl.layout import Coordinate, Layout
from hofl.randomness import Purpose, philox_words

TABLE_SHA256 = "b5d193788f8dbaca5f2b783ecc573e6cb85521b702952d959068ad27fa8dd491"
_UINT16 = np.dtype("<u2")
SHARED_STREAM = 2**32 - 1
"""Stream of methods whose whole cohort uses the same directions (DeComFL's own form)."""


@dataclass(frozen=True)
class DirectionKey:
    """Names the directions of one participation: (run seed, round, stream)."""

    seed: int
    round: int
    stream: int


@cache
def normal_table() -> np.ndarray:
    """The 65,536 quantiles at (k + 1/2) / 65536, scaled to unit variance, float32."""
    data = files("hofl").joinpath("normal_table.npy").read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != TABLE_SHA256:
        raise RuntimeError(f"normal_table.npy is damaged: SHA-256 {found}. Reinstall hofl.")
    table = np.load(io.BytesIO(data))
    table.flags.writeable = False
    return table


def direction(key: DirectionKey, step: int, j: int, index: int, size: int) -> np.ndarray:
    """Values of direction j of local step e for one parameter, float32 [size]."""
    words = _words(key, step, j, index, (size + 3) // 4)
    return normal_table().take(words.view(_UINT16)[:size], mode="clip")


def combine(
    scalars: Sequence[float] | np.ndarray,
    key: DirectionKey,
    step: int,
    layout: Layout,
    boundary: int,
    out: np.ndarray,
) -> np.ndarray:
    """The zeroth-order gradient estimate (1/q) sum_j s_j u_j, Eq. (6), into ``out`` [d_ZO].

    The order of the sum over j is protocol: client and server both call this function.
    """
    weights = np.asarray(scalars, dtype=np.float32)
    share = np.float32(1.0) / np.float32(len(weights))
    with np.errstate(over="ignore", invalid="ignore"):  # huge scalars are the caller's to refuse
        for coordinate in layout.bottom(boundary):
            _combine_one(weights, share, key, step, coordinate, out)
    return out


def _combine_one(
    weights: np.ndarray,
    share: np.float32,
    key: DirectionKey,
    step: int,
    coordinate: Coordinate,
    out: np.ndarray,
) -> None:
    target = out[coordinate.start : coordinate.stop]
    for j, scalar in enumerate(weights):
        values = direction(key, step, j, coordinate.index, coordinate.size)
        if j == 0:
            np.multiply(values, scalar, out=target)
        else:
            np.multiply(values, scalar, out=values)
            np.add(target, values, out=target)
    np.multiply(target, share, out=target)


class _Streams(threading.local):
    """One Philox per thread, re-keyed per draw: making a new one costs more than the draw."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.state = self.bits.state  # its output buffer is empty, and stays so in this copy
        self.key = self.state["state"]["key"]
        self.counter = self.state["state"]["counter"]


_streams = _Streams()


def _words(key: DirectionKey, step: int, j: int, index: int, count: int) -> np.ndarray:
    """Raw little-endian 64-bit words of one direction of one parameter."""
    words, counter = philox_words(
        key.seed, Purpose.DIRECTION, key.round, key.stream, index, step, j
    )
    streams = _streams
    streams.key[:] = words
    streams.counter[:] = counter
    streams.bits.state = streams.state
    return streams.bits.random_raw(count).astype("<u8", copy=False)
