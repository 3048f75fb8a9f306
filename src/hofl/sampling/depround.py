"""Fixed-size dependent rounding (DepRound): exact marginals, exactly K clients, O(N)."""

import numpy as np

TOLERANCE = 1e-9
"""Values this close to 0 or 1 are integral; rounding errors of the pairwise updates are smaller."""


def depround(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round x in [0, 1]^N with integral sum K to K indices, P(i chosen) = x_i.

    The first two fractional entries in a random order trade mass until one of them is integral, so
    one entry is settled per turn. Pairs are never positively correlated.

    Returns:
        The chosen indices, ascending, int64 [K].

    >>> depround(np.array([1.0, 0.0, 1.0]), np.random.default_rng(0)).tolist()
    [0, 2]
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"inclusion probabilities must be a vector, got shape {x.shape}.")
    bad = np.flatnonzero(~((x >= -TOLERANCE) & (x <= 1 + TOLERANCE)))  # NaN is bad too
    if len(bad):
        i = bad[0]
        raise ValueError(f"inclusion probabilities must lie in [0, 1]: entry {i} is {x[i]}.")
    total = x.sum()
    size = round(total)
    if abs(total - size) > max(1e-6, len(x) * TOLERANCE):
        raise ValueError(f"inclusion probabilities must sum to a whole number, got {total}.")
    chosen = x >= 1 - TOLERANCE
    order = rng.permutation(len(x))
    order = order[(x[order] > TOLERANCE) & ~chosen[order]]
    draws = rng.random(len(order)).tolist()
    values = x.tolist()
    holder = -1  # the one entry still fractional
    for i, draw in zip(order.tolist(), draws, strict=True):
        if holder < 0:
            holder = i
            continue
        up, down = min(1 - values[holder], values[i]), min(values[holder], 1 - values[i])
        if draw < down / (up + down):
            values[holder], values[i] = values[holder] + up, values[i] - up
        else:
            values[holder], values[i] = values[holder] - down, values[i] + down
        loose = [k for k in (holder, i) if TOLERANCE < values[k] < 1 - TOLERANCE]
        for k in (holder, i):
            chosen[k] = values[k] >= 1 - TOLERANCE
        holder = loose[0] if loose else -1
    if holder >= 0:  # the sum is whole, so only accumulated rounding can leave one entry over
        chosen[holder] = chosen.sum() < size
    result = np.flatnonzero(chosen)
    assert len(result) == size, f"DepRound chose {len(result)} clients instead of {size}"
    return result
