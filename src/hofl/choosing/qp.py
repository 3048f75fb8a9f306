"""The statistical quadratic program, Eq. (13): the reference that the beta policy approximates.

It needs every client's expected update and the true gradient, which no server has before training;
with measured or simulated statistics it shows how far a policy is from the best one.
"""

from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.vectors import check_cohort
from hofl.sampling.statistics import Statistics
from hofl.sampling.water_filling import check_floor

ACCURACY = 1e-10
"""Asked of the solver, on a problem scaled to gradients of size 1."""


def statistical_qp(statistics: Statistics, cohort: int, floor: float) -> np.ndarray:
    """Return the argmin of J(p) over sum p = 1, epsilon/N <= p_i <= 1/K.

    An interior-point solver finds it; where several p are optimal (D < N), it returns one of them.
    Needs ``pip install 'hofl[qp]'``.

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
    """Minimise ||matrix p - target||^2 + costs^T p; the residual is a separate variable."""
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
        raise HoflError(f"the QP solver failed: {answer.status}. Are the statistics extreme?")
    return np.asarray(answer.x)[:clients]
