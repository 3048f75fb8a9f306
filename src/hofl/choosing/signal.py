"""How much signal the bottom's minibatch gradient has, and how well a step can point at it.

A minibatch gradient is g = grad f + noise. Its *signal share* ||grad f||^2 / E||g||^2 is estimated
from independent minibatches: products of different ones have expectation ||grad f||^2, squared
lengths E||g||^2. The cosine that follows from it (``theory.lemmas.reachable_cosine``) says before
any training whether a zeroth-order bottom can earn anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hofl.choosing.moments import Products, WithError
from hofl.theory.lemmas import kappa, reachable_cosine


@dataclass(frozen=True)
class TierSignal:
    """The bottom's gradient in one tier of a fleet.

    Args:
        boundary: b.
        dims: d_ZO, number of bottom parameters.
        share: sum of ||grad f_i||^2 over sum of E||g_i||^2, bottom parts of the tier's clients.
    """

    boundary: int
    dims: int
    share: WithError

    def cosine(self, q: int, estimates: int = 1) -> float:
        """Return what the mean of this many estimates of q directions reaches; q = 0: exact ones.

        A share that is negative by chance counts as 0.
        """
        kappas = kappa(np.array([self.dims]), q) if q else np.zeros(1)
        return float(reachable_cosine(max(self.share.value, 0.0), kappas, estimates)[0])


def tier_signals(
    gradients: np.ndarray, boundaries: Sequence[int], cut: Callable[[int], int]
) -> tuple[TierSignal, ...]:
    """Return the signal of every tier that has a bottom, in order of its boundary.

    Args:
        gradients: minibatch gradients, [N, R, d].
        boundaries: b_i, [N].
        cut: number of bottom parameters at a boundary.
    """
    owners = np.array(boundaries)
    return tuple(
        TierSignal(b, cut(b), signal_share(gradients[owners == b, :, : cut(b)]))
        for b in np.unique(owners).tolist()
        if cut(b)
    )


def signal_share(samples: np.ndarray) -> WithError:
    """Return sum_i ||E g_i||^2 / sum_i E||g_i||^2 of samples [M, R, n], with its jackknife error.

    Numerator and denominator are unbiased. The share is 0 where all samples are.
    """
    blocks = np.stack([Products.of(rows[None]).blocks[0, :, 0] for rows in samples])  # [M, R, R]
    repetitions = blocks.shape[1]
    parts = np.array([_parts(block) for block in blocks])  # [M, 2]
    total, variance = parts.sum(axis=0), 0.0
    for block, part in zip(blocks, parts, strict=True):
        rest = total - part
        kept = (np.delete(np.delete(block, r, 0), r, 1) for r in range(repetitions))
        values = [_ratio(rest + _parts(left)) for left in kept]
        variance += (repetitions - 1) * float(np.var(values))
    return WithError(_ratio(total), variance**0.5)


def _parts(block: np.ndarray) -> np.ndarray:
    """Return unbiased ||E g||^2 and E||g||^2 [2] from one client's products [R, R]."""
    count, squares = len(block), np.trace(block)
    return np.array([(block.sum() - squares) / (count * (count - 1)), squares / count])


def _ratio(parts: np.ndarray) -> float:
    return float(parts[0] / parts[1]) if parts[1] > 0 else 0.0
