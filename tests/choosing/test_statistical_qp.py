"""The statistical QP against brute force, its optimality conditions, and the relaxation's bound."""

import sys

import numpy as np
import pytest

from hofl.choosing.qp import statistical_qp
from hofl.core.errors import HoflError
from hofl.sampling.policies import DimensionAware
from hofl.sampling.statistics import Statistics
from hofl.sampling.water_filling import water_filling


def random_statistics(seed: int, clients: int, size: int) -> Statistics:
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=size)
    return Statistics(
        means=gradient + rng.normal(size=(clients, size)) * 10.0 ** rng.uniform(-2, 1),
        variances=rng.random(clients) * 10.0 ** rng.uniform(-1, 2),
        gradient=gradient,
        smoothness=float(10.0 ** rng.uniform(-1, 1)),
        step=float(10.0 ** rng.uniform(-2, 0)),
    )


def random_shares(rng: np.random.Generator, clients: int, cohort: int, floor: float) -> np.ndarray:
    """A feasible p: some cohort's r, mixed with others and with u."""
    rows = [np.isin(range(clients), rng.permutation(clients)[:cohort]) / cohort for _ in range(3)]
    p = rng.dirichlet(np.ones(3)) @ np.array(rows)
    return floor / clients + (1 - floor) * p


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("cohort", "floor"), [(1, 0.0), (2, 0.3), (1, 0.6)])
def test_three_clients_equal_brute_force_on_a_grid(seed: int, cohort: int, floor: float):
    statistics = random_statistics(seed, 3, 4)
    p = statistical_qp(statistics, cohort, floor)
    best = statistics.objective(p, cohort)
    axis = np.linspace(floor / 3, 1 / cohort, 301)
    first, second = (side.ravel() for side in np.meshgrid(axis, axis))
    grid = np.column_stack([first, second, 1 - first - second])
    grid = grid[(grid[:, 2] >= floor / 3) & (grid[:, 2] <= 1 / cohort)]
    bias = grid @ statistics.means - statistics.gradient
    values = (bias**2).sum(axis=1) + grid @ statistics.costs(cohort)
    assert best <= values.min() * (1 + 1e-9)
    step = axis[1] - axis[0]
    nearest = np.abs(grid - p).max(axis=1).min()
    assert nearest <= 2 * step
    slope = 2 * np.abs(statistics.means @ (p @ statistics.means - statistics.gradient)).max()
    curvature = 2 * np.linalg.norm(statistics.means, 2) ** 2
    reach = 2 * step * (3 * (slope + statistics.costs(cohort).max()) + 9 * curvature * step)
    assert values.min() <= best + reach


@pytest.mark.parametrize(("clients", "size"), [(30, 5), (30, 200), (12, 12), (60, 1)])
def test_no_exchange_of_mass_between_two_clients_improves_the_solution(clients: int, size: int):
    """KKT: what could be taken costs no more at the margin than what could be given."""
    for seed in range(5):
        statistics = random_statistics(seed, clients, size)
        p = statistical_qp(statistics, 6, 0.2)
        assert abs(p.sum() - 1) < 1e-12
        assert (p >= 0.2 / clients - 1e-9).all()
        assert (p <= 1 / 6 + 1e-9).all()
        bias = p @ statistics.means - statistics.gradient
        slope = 2 * statistics.means @ bias + statistics.costs(6)
        takeable, givable = slope[p > 0.2 / clients + 1e-5], slope[p < 1 / 6 - 1e-5]
        scale = np.abs(statistics.means).max() ** 2 * size + statistics.costs(6).max()
        assert takeable.max() <= givable.min() + 1e-5 * scale


def test_relaxation_bounds_the_objective_for_every_policy():
    """J(p) <= A ||p - u||^2 + c^T p + 2 ||mean a - g||^2, the Cauchy-Schwarz step."""
    rng = np.random.default_rng(0)
    for seed in range(300):
        clients, cohort = 12, int(rng.integers(1, 12))
        statistics = random_statistics(seed, clients, int(rng.integers(1, 30)))
        p = random_shares(rng, clients, cohort, float(rng.random()))
        assert statistics.objective(p, cohort) <= statistics.relaxed(p, cohort) * (1 + 1e-12)
    # With p - u along the deviations a_i - mean, Cauchy-Schwarz is an equality; what remains is
    # the factor 2 of ||x + y||^2 <= 2 ||x||^2 + 2 ||y||^2.
    means = np.array([[1.0], [-1.0], [0.0]])
    tight = Statistics(means, np.zeros(3), np.zeros(1), 0.0, 0.1)
    p = np.array([1 / 3 + 0.1, 1 / 3 - 0.1, 1 / 3])
    assert 2 * tight.objective(p, 1) == pytest.approx(tight.relaxed(p, 1), rel=1e-12)


def test_reference_is_best_and_water_filling_is_best_for_the_relaxation():
    rng = np.random.default_rng(1)
    for seed in range(40):
        statistics = random_statistics(seed, 20, 8)
        reference = statistical_qp(statistics, 4, 0.2)
        filled = water_filling(statistics.weight, statistics.costs(4), 4, 0.2)
        beta = DimensionAware(0.8).marginals(statistics.costs(4), 4, seed=0)
        low = statistics.objective(reference, 4) - 1e-7 * abs(statistics.objective(filled, 4))
        for p in (filled, beta, *(random_shares(rng, 20, 4, 0.2) for _ in range(10))):
            assert low <= statistics.objective(p, 4)
            assert statistics.relaxed(filled, 4) <= statistics.relaxed(p, 4) * (1 + 1e-12)


def test_identical_clients_leave_only_the_linear_program():
    """Oracle: greedy allocation, which water-filling does when A = 0."""
    rng = np.random.default_rng(2)
    statistics = Statistics(np.ones((9, 4)), rng.random(9), np.zeros(4), 1.0, 0.5)
    assert statistics.weight == 0
    p = statistical_qp(statistics, 3, 0.3)
    np.testing.assert_allclose(p, water_filling(0.0, statistics.costs(3), 3, 0.3), atol=1e-6)


def test_clients_without_any_update_are_an_ordinary_input():
    statistics = Statistics(np.zeros((4, 3)), np.array([1.0, 2, 3, 4]), np.zeros(3), 1.0, 1.0)
    np.testing.assert_allclose(statistical_qp(statistics, 2, 0.0), [0.5, 0.5, 0, 0], atol=1e-7)


@pytest.mark.parametrize(("cohort", "floor"), [(5, 0.0), (2, 1.0)])
def test_uniform_shares_are_all_that_is_feasible(cohort: int, floor: float):
    assert statistical_qp(random_statistics(0, 5, 3), cohort, floor).tolist() == [0.2] * 5


def test_missing_solver_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(HoflError, match=r"pip install 'hofl\[qp\]'"):
        statistical_qp(random_statistics(0, 5, 3), 2, 0.0)
