"""The statistical quadratic program, Eq. (13): the reference that the beta policy approximates.

It needs every client's expected update and the true gradient, which no server has before training;
with measured or simulated statistics it tells how far a policy is from the best one.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hofl.errors import HoflError
from hofl.sampling.checks import check_cohort, check_floor, check_scores

ACCURACY = 1e-10
"""Asked of the solver, on a problem scaled to gradients of size 1."""


@dataclass(frozen=True)
class Statistics:
    """Moments of the clients' normalised updates U_i = (w - w_i^E) / h in one round.

    Args:
        means: a_i = E[U_i], [N, D].
        variances: v_i = E||U_i - a_i||^2, [N].
        gradient: g, the gradient of the global objective, [D].
        smoothness: L.
        step: h = eta E.
    """

    means: np.ndarray
    variances: np.ndarray
    gradient: np.ndarray
    smoothness: float
    step: float

    def __post_init__(self) -> None:
        check_scores(self.variances, "variance")
        clients, size = len(self.variances), np.size(self.gradient)
        if np.shape(self.means) != (clients, size) or np.ndim(self.gradient) != 1:
            raise HoflError(
                f"means must be [N, D] = [{clients}, {size}], as the variances and the gradient "
                f"say, got shape {np.shape(self.means)}."
            )
        for name in ("means", "gradient"):
            bad = np.argwhere(~np.isfinite(getattr(self, name)))
            if len(bad):
                raise HoflError(f"{name} must be finite: entry {bad[0].tolist()} is not.")
        for name in ("smoothness", "step"):
            if not 0 <= getattr(self, name) < np.inf:
                raise HoflError(f"{name} must be finite, not negative; got {getattr(self, name)}.")

    @cached_property
    def spread(self) -> np.ndarray:
        """||a_i - mean of a||^2, [N]."""
        return np.sum((self.means - self.means.mean(axis=0)) ** 2, axis=1)

    @property
    def weight(self) -> float:
        """A = 2 N H_a = 2 sum_i ||a_i - mean of a||^2."""
        return float(2 * self.spread.sum())

    def costs(self, cohort: int) -> np.ndarray:
        """c_i = (L h / K) [v_i + 2 ||a_i - mean of a||^2], [N]."""
        return self.smoothness * self.step / cohort * (self.variances + 2 * self.spread)

    def objective(self, p: np.ndarray, cohort: int) -> float:
        """J(p) = ||sum_i p_i a_i - g||^2 + c^T p."""
        bias = p @ self.means - self.gradient
        return float(bias @ bias + self.costs(cohort) @ p)

    def relaxed(self, p: np.ndarray, cohort: int) -> float:
        """A ||p - u||^2 + c^T p + 2 ||mean of a - g||^2, an upper bound of J (Cauchy-Schwarz)."""
        away = p - 1 / len(p)
        offset = self.means.mean(axis=0) - self.gradient
        return float(self.weight * away @ away + self.costs(cohort) @ p + 2 * offset @ offset)


def statistical_qp(statistics: Statistics, cohort: int, floor: float) -> np.ndarray:
    """The argmin of J(p) over sum p = 1, epsilon/N <= p_i <= 1/K, by an interior-point solver.

    Where several p are optimal (D < N) the solver's is one of them. Needs ``pip install
    hofl[qp]``.

    Args:
        statistics: a_i, v_i, g, L, h.
        cohort: K.
        floor: epsilon.

    Returns:
        p, [N].
    """
    clients = len(statistics.variances)
    check_cohort(cohort, clients)
    check_floor(floor)
    if cohort == clients or floor == 1:
        return np.full(clients, 1.0 / clients)
    # ||A p - g|| = ||R [p; -1]|| with the triangular factor of [A g]: N + 1 rows whatever D is,
    # and unlike A^T A it does not square the condition number.
    columns = np.column_stack([statistics.means.T, statistics.gradient])
    factor = np.linalg.qr(columns).R
    scale = np.abs(factor).max() or 1.0
    costs = statistics.costs(cohort)
    solution = _solve(
        factor[:, :-1] / scale,
        factor[:, -1] / scale,
        (costs - costs.min()) / scale**2,  # sum p = 1: one constant on all costs changes nothing
        floor / clients,
        1.0 / cohort,
    )
    p = np.clip(solution, floor / clients, 1.0 / cohort)
    return p / p.sum()


def _solve(
    matrix: np.ndarray, target: np.ndarray, costs: np.ndarray, low: float, high: float
) -> np.ndarray:
    """The argmin of ||matrix p - target||^2 + costs^T p; the residual is a variable of its own."""
    try:
        import clarabel
        from scipy import sparse
    except ImportError:
        raise HoflError(
            "the statistical QP needs a solver that is not installed: pip install 'hofl[qp]'."
        ) from None
    rows, clients = matrix.shape
    eye = sparse.identity(clients)
    constraints = sparse.block_array(
        [
            [matrix, -sparse.identity(rows)],  # residual = matrix p - target
            [np.ones((1, clients)), None],
            [eye, None],
            [-eye, None],
        ],
        format="csc",
    )
    bounds = np.concatenate([target, [1.0], np.full(clients, high), np.full(clients, -low)])
    quadratic = sparse.block_diag(
        [sparse.csc_array((clients, clients)), 2 * sparse.identity(rows)], format="csc"
    )
    linear = np.concatenate([costs, np.zeros(rows)])
    cones = [clarabel.ZeroConeT(rows + 1), clarabel.NonnegativeConeT(2 * clients)]
    settings: Any = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = ACCURACY
    answer = clarabel.DefaultSolver(quadratic, linear, constraints, bounds, cones, settings).solve()
    if answer.status != clarabel.SolverStatus.Solved:
        raise HoflError(f"the QP solver gave up: {answer.status}. Are the statistics extreme?")
    return np.asarray(answer.x)[:clients]
