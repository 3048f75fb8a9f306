"""Moments of a fleet from samples: repeated updates and gradients give a_i, v_i, H_a, zeta^2.

Every client repeats its local update (and a minibatch gradient) R times with fresh randomness.
Means of R samples are too long by their own noise: E||mean||^2 = ||a_i||^2 + v_i / R, and with d in
the 10^5 that noise is most of their length. So nothing is computed from means. All quantities are
inner products <a_i, a_j>, estimated without bias by products of *different* samples,

    <a_i, a_j> ~ mean over r, s of <U_ir, U_js>,     ||a_i||^2 ~ mean over r != s of <U_ir, U_is>,
    v_i ~ mean over r of ||U_ir||^2  -  the estimate of ||a_i||^2,

which is the same as subtracting v_i / R from the squared length of the mean. Standard errors are
the jackknife's, leaving out one sample of one client at a time.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hofl.core.errors import HoflError
from hofl.sampling.statistics import Statistics

if TYPE_CHECKING:
    from hofl.choosing.signal import TierSignal

CHUNK = 65_536
"""Coordinates multiplied at a time in float64."""
LEAST = 3
"""Repetitions that leave two different samples when the jackknife leaves one out."""


@dataclass(frozen=True)
class WithError:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Products:
    """Inner products of all samples, [M, R, M, R]; the d coordinates are not needed beyond them."""

    blocks: np.ndarray

    @classmethod
    def of(cls, samples: np.ndarray) -> "Products":
        """Multiply samples [M, R, d] of any float type; sums are kept in float64."""
        owners, repetitions, size = samples.shape
        if repetitions < LEAST:
            raise HoflError(f"repetitions must be at least {LEAST}, got {repetitions}.")
        rows = samples.reshape(owners * repetitions, size)
        total = np.zeros((len(rows), len(rows)))
        for start in range(0, size, CHUNK):
            part = rows[:, start : start + CHUNK].astype(np.float64)
            total += part @ part.T
        if not np.isfinite(total).all():
            raise HoflError("a measured update is not finite: lower method.optimizer.lr.")
        return cls(total.reshape(owners, repetitions, owners, repetitions))

    def some(self, samples: slice) -> "Products":
        """Return the products of these repetitions alone."""
        return Products(self.blocks[:, samples, :, samples])

    @cached_property
    def gram(self) -> np.ndarray:
        """Unbiased <a_i, a_j>, [M, M]."""
        repetitions = self.blocks.shape[1]
        gram = self.blocks.mean(axis=(1, 3))
        squares = np.einsum("irir->i", self.blocks)
        pairs = repetitions * (repetitions - 1)  # of different samples of one owner
        np.fill_diagonal(gram, (np.diag(gram) * repetitions**2 - squares) / pairs)
        return gram

    def gram_without(self, owner: int, sample: int) -> np.ndarray:
        """Return ``gram`` without one sample of one owner: one row and one column change."""
        left = self.blocks.shape[1] - 1
        rest = np.delete(self.blocks[owner], sample, axis=0)  # [R - 1, M, R]
        gram = self.gram.copy()
        gram[owner] = gram[:, owner] = rest.mean(axis=(0, 2))
        block = np.delete(rest[:, owner], sample, axis=1)  # [R - 1, R - 1]
        gram[owner, owner] = (block.sum() - np.trace(block)) / (left * (left - 1))
        return gram

    def variances(self) -> np.ndarray:
        """Return v_i = E||U_i - a_i||^2 [M], by the sample variance."""
        squares = np.einsum("irir->i", self.blocks) / self.blocks.shape[1]
        return np.maximum(squares - np.diag(self.gram), 0.0)

    def estimate(self, quantity: Callable[[np.ndarray], float]) -> WithError:
        """Return a quantity of the gram matrix with its jackknife error over all samples."""
        owners, repetitions = self.blocks.shape[:2]
        variance = 0.0
        for i in range(owners):
            values = [quantity(self.gram_without(i, r)) for r in range(repetitions)]
            variance += (repetitions - 1) * float(np.var(values))
        return WithError(quantity(self.gram), variance**0.5)


def dispersion(gram: np.ndarray) -> float:
    """Return (1/N) sum_i ||a_i - mean of a||^2: H_a of updates, zeta^2 of gradients."""
    return float(np.diag(gram).mean() - gram.mean())


@dataclass(frozen=True)
class FleetMeasurement:
    """The statistics of a fleet at one point, with errors and how they were measured.

    Args:
        statistics: a_i, v_i, g, L, h; the vectors in coordinates of their own span.
        dispersion: H_a, unbiased.
        heterogeneity: zeta^2 = (1/N) sum_i ||grad f_i - grad f||^2, unbiased.
        noise: variance of every client's minibatch gradient, [N].
        boundaries: b_i, [N].
        repetitions: R.
        reference: what g is, ``gradient`` or ``mean update``.
        halves: the same statistics from the first and from the second half of the repetitions, so
            that what was fitted to one can be judged by the other; none if R is too small to halve.
        round: t of w_t, the point of measurement; 0 is the start.
        signals: signal share of the bottom's gradient, by tier; none where no tier has a bottom.
    """

    statistics: Statistics
    dispersion: WithError
    heterogeneity: WithError
    noise: np.ndarray
    boundaries: tuple[int, ...]
    repetitions: int
    reference: str
    halves: tuple[Statistics, ...] = ()
    round: int = 0
    signals: "tuple[TierSignal, ...]" = ()

    def to_json(self) -> str:
        """Return everything in the form that ``load_statistics`` reads."""
        s = self.statistics
        values = {
            "boundaries": list(self.boundaries),
            "repetitions": self.repetitions,
            "round": self.round,
            "reference": self.reference,
            "smoothness": s.smoothness,
            "step": s.step,
            "dispersion": vars(self.dispersion),
            "heterogeneity": vars(self.heterogeneity),
            "noise": self.noise.tolist(),
            "variances": s.variances.tolist(),
            "means": s.means.tolist(),
            "gradient": s.gradient.tolist(),
            "signal": [asdict(signal) for signal in self.signals],
        }
        return json.dumps(values)


def measurement(
    updates: np.ndarray,
    gradients: np.ndarray,
    *,
    smoothness: float,
    step: float,
    boundaries: tuple[int, ...],
    normalised: bool,
    first_order: bool = False,
) -> FleetMeasurement:
    """Estimate a fleet's statistics from samples of every client.

    Args:
        updates: U_ir = (w - w_i^E) / h, [N, R, d].
        gradients: minibatch gradients at w, [N, R, d].
        smoothness: L.
        step: h = eta E.
        boundaries: b_i.
        normalised: updates are in the gradient's units (SGD). AdamW's are not: then g is the mean
            update, and the representation error is measured from uniform sampling.
        first_order: use grad f_i as a_i, from which it differs by drift and bias alone (lemma
            "Local Trajectory Drift and Statistics"): far less noisy, and right for small L h.
    """
    if first_order and not normalised:
        raise HoflError("gradients can replace mean updates under SGD only.")
    of_updates, of_gradients = Products.of(updates), Products.of(gradients)

    def statistics(samples: slice) -> Statistics:
        moved, slopes = of_updates.some(samples), of_gradients.some(samples)
        if normalised and not first_order:
            both = _with_mean_gradient(updates[:, samples], gradients[:, samples])
            *means, gradient = _vectors(both)
        else:
            means = list(_vectors((slopes if first_order else moved).gram))
            gradient = np.mean(means, axis=0)
        return Statistics(np.array(means), moved.variances(), gradient, smoothness, step)

    half = updates.shape[1] // 2
    return FleetMeasurement(
        statistics=statistics(slice(None)),
        dispersion=of_updates.estimate(dispersion),
        heterogeneity=of_gradients.estimate(dispersion),
        noise=of_gradients.variances(),
        boundaries=boundaries,
        repetitions=updates.shape[1],
        reference="gradient" if normalised else "mean update",
        halves=(statistics(slice(half)), statistics(slice(half, None))) if half >= LEAST else (),
    )


def _with_mean_gradient(updates: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Unbiased inner products of a_1, ..., a_N and g, [N + 1, N + 1]."""
    clients = len(updates)
    both = Products.of(np.concatenate([updates, gradients])).gram
    mean = np.zeros((clients + 1, 2 * clients))  # rows: each a_i, then the mean of the gradients
    mean[:clients, :clients] = np.eye(clients)
    mean[clients, clients:] = 1 / clients
    return mean @ both @ mean.T


def _vectors(gram: np.ndarray) -> np.ndarray:
    """Return vectors with these inner products, [M, M]; negative eigenvalues, noise, are zero."""
    values, basis = np.linalg.eigh(gram)
    return basis * np.sqrt(np.maximum(values, 0.0))
