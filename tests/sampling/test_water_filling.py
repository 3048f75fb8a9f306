"""Water-filling against an exact solver in fractions, a QP library, and the KKT conditions."""

from fractions import Fraction

import clarabel
import numpy as np
import pytest
from scipy import optimize, sparse

from hofl.core.errors import HoflError
from hofl.sampling.water_filling import WaterFilling, fill, water_filling

INSTANCES = 300


def instance(seed: int) -> tuple[float, np.ndarray, int, float]:
    """A, c, K, epsilon: all scales, ties, zeros, and the corners K in {1, N}, epsilon in {0, 1}."""
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 25))
    cohort = int(rng.choice([1, clients, rng.integers(1, clients + 1)]))
    costs = rng.choice([rng.random(clients), rng.integers(0, 4, clients), rng.random(clients) ** 9])
    weight = float(rng.choice([10.0 ** rng.uniform(-4, 4), 1.0]))
    floor = float(rng.choice([0.0, 1.0, rng.random()], p=[0.2, 0.1, 0.7]))
    return weight, costs * 10.0 ** rng.uniform(-2, 2), cohort, floor


def exact(weight: float, costs: np.ndarray, cohort: int, floor: float) -> np.ndarray:
    """Oracle: the sum of clipped lines is piecewise linear in lambda; solve it by its corners."""
    c, a, n = [Fraction(x) for x in costs], Fraction(weight), len(costs)
    low, high = Fraction(floor) / n, Fraction(1, cohort)

    def shares(multiplier: Fraction) -> list[Fraction]:
        return [min(max(Fraction(1, n) - (x + multiplier) / (2 * a), low), high) for x in c]

    corners = sorted({2 * a * (Fraction(1, n) - bound) - x for x in c for bound in (low, high)})
    for left, right in zip(corners, corners[1:] or corners, strict=False):
        more, less = sum(shares(left)), sum(shares(right))
        if more >= 1 >= less:
            part = (more - 1) / (more - less) if more != less else Fraction(0)
            return np.array([float(x) for x in shares(left + part * (right - left))])
    raise AssertionError("no multiplier: the bounds exclude sum 1")


def by_clarabel(weight: float, costs: np.ndarray, cohort: int, floor: float) -> np.ndarray:
    """Oracle: an interior-point solver on the program as written."""
    n = len(costs)
    eye = sparse.identity(n)
    constraints = sparse.vstack([np.ones((1, n)), eye, -eye], format="csc")
    bounds = np.concatenate([[1.0], np.full(n, 1 / cohort), np.full(n, -floor / n)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    solver = clarabel.DefaultSolver(
        2 * weight * sparse.identity(n, format="csc"),
        costs - 2 * weight / n,
        constraints,
        bounds,
        [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * n)],
        settings,
    )
    return np.asarray(solver.solve().x)


@pytest.mark.parametrize("start", range(0, INSTANCES, 100))
def test_equals_the_exact_solution_to_1e_8(start: int):
    for seed in range(start, start + 100):
        weight, costs, cohort, floor = instance(seed)
        np.testing.assert_allclose(
            water_filling(weight, costs, cohort, floor),
            exact(weight, costs, cohort, floor),
            rtol=0,
            atol=1e-10,
            err_msg=f"seed {seed}",
        )


def test_equals_a_qp_library_to_1e_8():
    compared = 0
    for seed in range(2 * INSTANCES):
        weight, costs, cohort, floor = instance(seed)
        if cohort == len(costs) or floor == 1:  # an empty interior: no interior-point solution
            continue
        unit = max(weight, costs.max())  # the optimum does not depend on the objective's unit
        theirs = by_clarabel(weight / unit, costs / unit, cohort, floor)
        ours = water_filling(weight, costs, cohort, floor)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8, err_msg=f"seed {seed}")
        compared += 1
    assert compared > 300


def test_satisfies_the_kkt_conditions():
    """Some lambda makes each client's marginal cost 0 inside, >= 0 at the floor, <= 0 at 1/K."""
    for seed in range(INSTANCES):
        weight, costs, cohort, floor = instance(seed)
        p = water_filling(weight, costs, cohort, floor)
        n = len(p)
        low, high = floor / n, 1 / cohort
        assert abs(p.sum() - 1) < 1e-12
        assert (p >= low - 1e-15).all()
        assert (p <= high + 1e-15).all()
        slope = 2 * weight * (p - 1 / n) + costs  # plus lambda
        tolerance = 1e-10 * (weight + costs.max())
        raisable, lowerable = slope[p < high - 1e-12], slope[p > low + 1e-12]
        if len(raisable) and len(lowerable):
            assert lowerable.max() <= raisable.min() + tolerance, f"seed {seed}"


@pytest.mark.parametrize("seed", range(40))
def test_without_dispersion_the_linear_program_is_solved(seed: int):
    _, costs, cohort, floor = instance(seed)
    p = water_filling(0.0, costs, cohort, floor)
    bounds = (floor / len(costs), 1 / cohort)
    best = optimize.linprog(costs, A_eq=np.ones((1, len(costs))), b_eq=[1], bounds=bounds)
    assert best.status == 0
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= bounds[0] - 1e-15).all()
    assert (p <= bounds[1] + 1e-15).all()
    assert costs @ p <= best.fun + 1e-12 * max(1.0, costs.max())  # HiGHS stops within 1e-7
    assert costs @ p >= best.fun - 1e-6 * max(1.0, costs.max())


def test_without_dispersion_tied_costs_share_what_is_left():
    p = water_filling(0.0, np.array([1.0, 2.0, 2.0, 3.0, 2.0]), 2, 0.0)
    np.testing.assert_allclose(p, [0.5, 1 / 6, 1 / 6, 0, 1 / 6], atol=1e-15)


@pytest.mark.parametrize("weight", [1e-9, 1e-18, 1e-300, 5e-324])
def test_vanishing_dispersion_goes_over_into_the_linear_solution(weight: float):
    costs = np.array([5.0, 1e4, 1e4, 1e4, 1e5, 1.0])
    limit = water_filling(0.0, costs, 3, 0.1)
    np.testing.assert_allclose(water_filling(weight, costs, 3, 0.1), limit, atol=1e-15)


def test_large_dispersion_goes_over_into_uniform_shares():
    p = water_filling(1e12, np.array([0.0, 5.0, 9.0]), 2, 0.0)
    np.testing.assert_allclose(p, 1 / 3, atol=1e-11)


@pytest.mark.parametrize("weight", [0.0, 3.0])
@pytest.mark.parametrize(("cohort", "floor"), [(4, 0.2), (2, 1.0), (4, 1.0)])
def test_uniform_shares_are_all_that_is_feasible(weight: float, cohort: int, floor: float):
    p = water_filling(weight, np.array([1.0, 2.0, 30.0, 4.0]), cohort, floor)
    assert p.tolist() == [0.25] * 4


def test_a_constant_on_all_costs_changes_nothing_and_order_is_kept():
    rng = np.random.default_rng(0)
    costs = rng.random(50)
    p = WaterFilling(weight=2.0, floor=0.1).marginals(costs, 5, seed=0)
    shifted = WaterFilling(weight=2.0, floor=0.1).marginals(costs + 64, 5, seed=9)
    np.testing.assert_allclose(p, shifted, atol=1e-14)
    assert (np.diff(p[np.argsort(costs)]) <= 1e-15).all()


def test_a_million_clients_are_an_ordinary_input():
    costs = np.random.default_rng(0).random(10**6)
    p = water_filling(1e4, costs, 1000, 0.1)
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= 0.1 / 10**6).all()
    inside = (p > 0.1 / 10**6) & (p < 1e-3)
    slopes = 2e4 * (p - 1e-6)[inside] + costs[inside]
    assert np.ptp(slopes) < 1e-9


def test_filling_finds_the_nearest_point_of_the_box_with_the_sum():
    filled = fill(np.array([0.0, 0.5, 1.0]), 0.0, 0.9, 1.2)
    np.testing.assert_allclose(filled, [0.0, 0.35, 0.85], atol=1e-15)


@pytest.mark.parametrize(
    ("weight", "costs", "cohort", "floor", "message"),
    [
        (-1.0, [1, 2], 1, 0.0, r"weight \(A\) .*got -1"),
        (np.nan, [1, 2], 1, 0.0, r"weight \(A\) .*got nan"),
        (1.0, [1, -2], 1, 0.0, "costs must be finite and not negative: entry 1 is -2"),
        (1.0, [np.nan, 2], 1, 0.0, "costs .*entry 0 is nan"),
        (1.0, [1, 2], 3, 0.0, "cohort of 3 cannot be drawn from 2"),
        (1.0, [1, 2], 1, 1.5, r"floor \(epsilon\) must lie in \[0, 1\], got 1\.5"),
        (1.0, [1, 2], 1, np.nan, "got nan"),
    ],
)
def test_bad_input_is_refused_with_its_entry(weight, costs, cohort, floor, message):
    with pytest.raises(HoflError, match=message):
        WaterFilling(weight, floor).marginals(np.array(costs), cohort, seed=0)
    with pytest.raises(HoflError, match=message):
        water_filling(weight, np.array(costs), cohort, floor)


def test_costs_follow_the_clients_that_are_there_and_a_later_one_has_the_mean():
    policy = WaterFilling(30.0, 0.1, (5.0, 1.0, 4.0, 2.0, 3.0, 9.0))
    there = np.array([1, 5, 7])  # the mean of the six costs is 4
    assert policy.for_clients(there) == WaterFilling(30.0, 0.1, (1.0, 9.0, 4.0))
    assert policy.for_clients(np.arange(6)) == policy
    assert WaterFilling(30.0).for_clients(there) == WaterFilling(30.0)
