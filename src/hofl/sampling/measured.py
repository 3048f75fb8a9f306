"""Measured statistics of a fleet: from repeated updates and gradients to a_i, v_i, H_a, zeta^2.

Every client repeats its local update (and a minibatch gradient) R times with fresh randomness.
Means of R samples are too long by their own noise: E||mean||^2 = ||a_i||^2 + v_i / R, and with d in
the 10^5 that noise is most of what is seen. So nothing is computed from means. All quantities are
inner products <a_i, a_j>, estimated without bias by products of *different* samples,

    <a_i, a_j> ~ mean over r, s of <U_ir, U_js>,     ||a_i||^2 ~ mean over r != s of <U_ir, U_is>,
    v_i ~ mean over r of ||U_ir||^2  -  the estimate of ||a_i||^2,

which is the same as subtracting v_i / R from the squared length of the mean. Standard errors are
the jackknife's, leaving out one sample of one client at a time.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hofl.errors import HoflError
from hofl.sampling.statistical_qp import Statistics

CHUNK = 65_536
"""Coordinates multiplied at a time in float64."""
LEAST = 3
"""Repetitions that leave two different samples when the jackknife takes one away."""


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Products:
    """Inner products of all samples, [M, R, M, R]: all that is needed of the d coordinates."""

    blocks: np.ndarray

    @classmethod
    def of(cls, samples: np.ndarray) -> "Products":
        """From samples [M, R, d] in any float type, accumulated in float64."""
        owners, repetitions, size = samples.shape
        if repetitions < LEAST:
            raise HoflError(f"repetitions must be at least {LEAST}, got {repetitions}.")
        rows = samples.reshape(owners * repetitions, size)
        total = np.zeros((len(rows), len(rows)))
        for start in range(0, size, CHUNK):
            part = rows[:, start : start + CHUNK].astype(np.float64)
            total += part @ part.T
        if not np.isfinite(total).all():
            raise HoflError("a measured update is not finite: lower method.lr.")
        return cls(total.reshape(owners, repetitions, owners, repetitions))

    @cached_property
    def gram(self) -> np.ndarray:
        """Unbiased <a_i, a_j>, [M, M]."""
        repetitions = self.blocks.shape[1]
        found = self.blocks.mean(axis=(1, 3))
        own = np.einsum("irir->i", self.blocks)
        pairs = repetitions * (repetitions - 1)  # of different samples of one owner
        np.fill_diagonal(found, (np.diag(found) * repetitions**2 - own) / pairs)
        return found

    def gram_without(self, owner: int, sample: int) -> np.ndarray:
        """The same after leaving out one sample of one owner: one row and column change."""
        left = self.blocks.shape[1] - 1
        mine = np.delete(self.blocks[owner], sample, axis=0)  # [R - 1, M, R]
        found = self.gram.copy()
        found[owner] = found[:, owner] = mine.mean(axis=(0, 2))
        block = np.delete(mine[:, owner], sample, axis=1)  # [R - 1, R - 1]
        found[owner, owner] = (block.sum() - np.trace(block)) / (left * (left - 1))
        return found

    def variances(self) -> np.ndarray:
        """v_i = E||U_i - a_i||^2 [M], by the sample variance."""
        squares = np.einsum("irir->i", self.blocks) / self.blocks.shape[1]
        return np.maximum(squares - np.diag(self.gram), 0.0)

    def estimate(self, quantity: Callable[[np.ndarray], float]) -> Estimate:
        """A quantity of the gram matrix with its jackknife error over all samples."""
        owners, repetitions = self.blocks.shape[:2]
        variance = 0.0
        for i in range(owners):
            left = [quantity(self.gram_without(i, r)) for r in range(repetitions)]
            variance += (repetitions - 1) * float(np.var(left))
        return Estimate(quantity(self.gram), variance**0.5)


def dispersion(gram: np.ndarray) -> float:
    """(1/N) sum_i ||a_i - mean of a||^2 from <a_i, a_j>: H_a of updates, zeta^2 of gradients."""
    return float(np.diag(gram).mean() - gram.mean())


@dataclass(frozen=True)
class Measured:
    """The statistics of a fleet at one point, ready for the policies that need them.

    Args:
        statistics: a_i, v_i, g, L, h; the vectors in coordinates of their own span.
        dispersion: H_a, unbiased.
        heterogeneity: zeta^2 = (1/N) sum_i ||grad f_i - grad f||^2, unbiased.
        noise: variance of every client's minibatch gradient, [N].
        boundaries: b_i, [N].
        repetitions: R.
        reference: what stands for g, ``gradient`` or ``mean update``.
    """

    statistics: Statistics
    dispersion: Estimate
    heterogeneity: Estimate
    noise: np.ndarray
    boundaries: tuple[int, ...]
    repetitions: int
    reference: str

    def to_json(self) -> str:
        """Everything, as :func:`load_statistics` reads it."""
        s = self.statistics
        values = {
            "boundaries": list(self.boundaries),
            "repetitions": self.repetitions,
            "reference": self.reference,
            "smoothness": s.smoothness,
            "step": s.step,
            "dispersion": vars(self.dispersion),
            "heterogeneity": vars(self.heterogeneity),
            "noise": self.noise.tolist(),
            "variances": s.variances.tolist(),
            "means": s.means.tolist(),
            "gradient": s.gradient.tolist(),
        }
        return json.dumps(values)


def measured(
    updates: np.ndarray,
    gradients: np.ndarray,
    *,
    smoothness: float,
    step: float,
    boundaries: tuple[int, ...],
    normalised: bool,
    first_order: bool = False,
) -> Measured:
    """Statistics from samples of every client.

    Args:
        updates: U_ir = (w - w_i^E) / h, [N, R, d].
        gradients: minibatch gradients at w, [N, R, d].
        smoothness: L.
        step: h = eta E.
        boundaries: b_i.
        normalised: updates are in the gradient's units (SGD). AdamW's are not: then the mean update
            stands for g, and the representation error is measured from uniform sampling.
        first_order: take grad f_i for a_i, from which it differs by drift and bias alone (lemma
            "Local Trajectory Drift and Statistics"): far less noisy, and right for small L h.
    """
    if first_order and not normalised:
        raise HoflError("gradients can stand for mean updates under SGD only.")
    own, slopes = Products.of(updates), Products.of(gradients)
    if normalised and not first_order:
        *means, gradient = _vectors(_with_mean_gradient(updates, gradients))
    else:
        means = list(_vectors((slopes if first_order else own).gram))
        gradient = np.mean(means, axis=0)
    return Measured(
        statistics=Statistics(np.array(means), own.variances(), gradient, smoothness, step),
        dispersion=own.estimate(dispersion),
        heterogeneity=slopes.estimate(dispersion),
        noise=slopes.variances(),
        boundaries=boundaries,
        repetitions=updates.shape[1],
        reference="gradient" if normalised else "mean update",
    )


def load_statistics(path: str) -> tuple[Statistics, tuple[int, ...]]:
    """The statistics and the boundaries of a file that :meth:`Measured.to_json` wrote."""
    try:
        values: dict[str, Any] = json.loads(Path(path).read_bytes())
        arrays = {key: np.array(values[key]) for key in ("means", "variances", "gradient")}
        found = Statistics(**arrays, smoothness=values["smoothness"], step=values["step"])
        return found, tuple(values["boundaries"])
    except OSError as error:
        raise HoflError(f"cannot read statistics {path!r}: {error.strerror}.") from None
    except HoflError as error:
        raise HoflError(f"{path!r}: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise HoflError(
            f"{path!r} holds no statistics. Write them with hofl beta measure."
        ) from None


def _with_mean_gradient(updates: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Unbiased inner products of a_1, ..., a_N and g, [N + 1, N + 1]."""
    clients = len(updates)
    both = Products.of(np.concatenate([updates, gradients])).gram
    mean = np.zeros((clients + 1, 2 * clients))  # rows: each a_i, then the mean of the gradients
    mean[:clients, :clients] = np.eye(clients)
    mean[clients, clients:] = 1 / clients
    return mean @ both @ mean.T


def _vectors(gram: np.ndarray) -> np.ndarray:
    """Vectors with these inner products, [M, M]; what noise made negative is taken for zero."""
    values, basis = np.linalg.eigh(gram)
    return basis * np.sqrt(np.maximum(values, 0.0))
