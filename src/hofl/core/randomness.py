"""All randomness of a run: separate keyed streams of one seed; no global generator is used.

A stream is named by (seed, purpose, coordinates). Philox is counter-based: the name *is* its key
and starting counter, so any stream can be made anywhere, in any order, without carrying state.
"""

from enum import IntEnum

import numpy as np

_WORD = 2**64
_HALF = 2**32


class Purpose(IntEnum):
    """What a stream is for. Two purposes never share a bit."""

    DIRECTION = 1
    BATCH = 2
    COHORT = 3
    TIE_BREAK = 4
    PARTITION = 5
    FLEET = 6
    ADAPTER = 7
    DROPOUT = 8
    CHOICES = 9
    HOLDOUT = 10
    SUBSET = 11
    CURVE = 12
    UPLINK = 13
    CANDIDATE = 14


def philox_words(
    seed: int, purpose: Purpose, first: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Return Philox key and counter of a stream; injective in (seed, purpose, coordinates).

    Word 0 of the counter is left to count blocks of output. The first coordinate takes a whole
    word, the other four half a word each.
    """
    if not (0 <= seed < _WORD and 0 <= first < _WORD):
        raise ValueError(f"seed and first coordinate must lie in [0, 2**64), got {seed}, {first}.")
    if not (0 <= a < _HALF and 0 <= b < _HALF and 0 <= c < _HALF and 0 <= d < _HALF):
        raise ValueError(f"later coordinates must lie in [0, 2**32), got {(a, b, c, d)}.")
    return (seed, purpose), (0, a * _HALF + b, c * _HALF + d, first)


def generator(seed: int, purpose: Purpose, *coordinates: int) -> np.random.Generator:
    """Return a NumPy generator on one stream, for draws that only one side makes."""
    key, counter = philox_words(seed, purpose, *coordinates)
    bits = np.random.Philox(
        key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64)
    )
    return np.random.Generator(bits)
