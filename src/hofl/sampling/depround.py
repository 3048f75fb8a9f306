"""Fixed-size dependent rounding (the paper's function DepRound): exact marginals, K clients, O(N).

>>> depround(np.array([1.0, 0.0, 1.0]), np.random.default_rng(0)).tolist()
[0, 2]
"""

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import SUM_TOLERANCE, refuse, vector

TOLERANCE = 1e-12
"""Values this close to 0 or 1 are snapped to it.

A pairwise update rounds at 1e-16, so over a million clients the held value drifts by about 1e-13.
A larger tolerance would round real shares away: K p_i is 1e-9 in ordinary large fleets.
"""


def depround(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round x in [0, 1]^N with integral sum K to K indices with P(i chosen) = x_i.

    In a fresh random order the first two fractional entries i, j trade mass,

        delta_+ = min(1 - x_i, x_j),  delta_- = min(x_i, 1 - x_j),
        x_i += delta_+, x_j -= delta_+  with probability delta_- / (delta_+ + delta_-),
        x_i -= delta_-, x_j += delta_-  otherwise,

    so each turn settles at least one of them and leaves at most one *held* for the next turn.
    Marginals and the sum are kept, and E[X_i X_j] <= x_i x_j for every pair.

    Returns:
        The chosen indices, ascending, int64 [K].
    """
    x, size = _checked(x)
    order = rng.permutation(len(x))
    order = order[(x[order] > TOLERANCE) & (x[order] < 1 - TOLERANCE)]
    draws = rng.random(len(order))
    chosen = np.flatnonzero(x >= 1 - TOLERANCE).tolist()
    above = 1 - TOLERANCE
    i, x_i = -1, 0.0  # the held entry; none before the first
    # Lists, not arrays: reading a million NumPy scalars one by one would take twice as long.
    for j, x_j, draw in zip(order.tolist(), x[order].tolist(), draws.tolist(), strict=True):
        if i < 0:
            i, x_i = j, x_j
            continue
        room_i, room_j = 1 - x_i, 1 - x_j
        up = room_i if room_i < x_j else x_j
        down = x_i if x_i < room_j else room_j
        if draw * (up + down) < down:
            x_i, x_j = x_i + up, x_j - up
        else:
            x_i, x_j = x_i - down, x_j + down
        if TOLERANCE < x_i < above:
            settled, value = j, x_j
        else:
            settled, value = i, x_i
            i, x_i = j, x_j
        if value >= above:
            chosen.append(settled)
        if x_i >= above:  # the sum of the two was whole: both are settled
            chosen.append(i)
            i = -1
        elif x_i <= TOLERANCE:
            i = -1
    if i >= 0 and len(chosen) < size:  # K is whole: only accumulated rounding leaves one held
        chosen.append(i)
    if len(chosen) != size:
        raise HoflError(f"DepRound chose {len(chosen)} clients instead of {size}.")
    return np.sort(np.array(chosen, dtype=np.int64))


def _checked(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Return probabilities x as float64 [N] in [0, 1] with whole sum K, and K."""
    x = vector(x, "inclusion probabilities")
    within = (x >= -SUM_TOLERANCE) & (x <= 1 + SUM_TOLERANCE)
    refuse(~within, x, "inclusion probabilities must lie in [0, 1]")
    total = x.sum()
    size = round(total)
    if abs(total - size) > SUM_TOLERANCE * max(size, 1000):  # x = K p: the error of p, K times
        raise HoflError(f"inclusion probabilities must sum to a whole number, got {total:.12g}.")
    return x, size
