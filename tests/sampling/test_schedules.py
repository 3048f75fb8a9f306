"""Schedules of beta: exact shares in every round, the promised coverage, equal bits on resume."""

from pathlib import Path

import numpy as np
import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.methods import method
from hofl.sampling.policies import DimensionAware
from hofl.sampling.schedules import HIGHEST, Constant, Cosine, Coverage, LinearPath
from support.runs import adapter_bytes, quick

N, K, T = 30, 6, 160
TIERS = np.repeat([100.0, 200.0, 300.0], 10)
ALL = [
    (DimensionAware(0.0, "linear", 0.75), LinearPath(0.0, 0.75)),
    (DimensionAware(0.9, "cosine", 0.1), Cosine(0.9, 0.1)),
    (DimensionAware(0.9, "coverage", 0.1, 16), Coverage(0.9, 0.1, 16)),
    (DimensionAware(0.5, "coverage", None, 2), Coverage(0.5, 0.5, 2)),
    (DimensionAware(0.3), Constant(0.3)),
]


@pytest.mark.parametrize(("policy", "schedule"), ALL, ids=lambda value: repr(value))
def test_shares_are_those_of_the_papers_policy_in_every_round(
    policy: DimensionAware, schedule: LinearPath | Cosine | Coverage | Constant
):
    assert policy.schedule == schedule
    path = schedule.path(T, N, K)
    for t in range(T):
        p = policy.marginals(TIERS, K, 7, t, T)
        assert np.array_equal(p, DimensionAware(path[t]).marginals(TIERS, K, 7))
        assert abs(p.sum() - 1) < 1e-12
        assert (p <= 1 / K + 1e-15).all()
        assert (p >= (1 - path[t]) / N - 1e-15).all()
        assert abs(N * np.sum((p - 1 / N) ** 2) - path[t] ** 2 * (N / K - 1)) < 1e-12


def test_paths_go_from_the_first_value_to_the_last_as_named():
    np.testing.assert_allclose(LinearPath(0.2, 0.6).path(5, N, K), [0.2, 0.3, 0.4, 0.5, 0.6])
    half = 0.2 * np.sqrt(0.5)
    expected = [0.2, 0.4 - half, 0.4, 0.4 + half, 0.6]
    np.testing.assert_allclose(Cosine(0.2, 0.6).path(5, N, K), expected)
    for schedule in (LinearPath(0.3, 0.6), Cosine(0.3, 0.6)):
        assert schedule.path(1, N, K).tolist() == [0.3], "a single round is a first one"


@pytest.mark.parametrize("minimum", [0.5, 2, 8, 16, 24, 31, 32])
@pytest.mark.parametrize(("beta", "end"), [(0.5, 0.5), (0.0, 0.99), (0.9, 0.1), (0.0, 0.0)])
def test_everyone_is_expected_to_reach_the_coverage(beta: float, end: float, minimum: float):
    policy = DimensionAware(beta, "coverage", end, minimum)
    expected = sum(K * policy.marginals(TIERS, K, 3, t, T) for t in range(T))
    assert expected.min() == pytest.approx(minimum, abs=1e-9), "not less, and no beta is given away"
    assert expected.sum() == pytest.approx(K * T)


@pytest.mark.parametrize(("beta", "minimum"), [(0.25, 24), (0.5, 16), (0.75, 8)])
def test_flat_coverage_is_the_papers_cap(beta: float, minimum: float):
    """The cap 1 - mN/(KT), whatever the line was: raised from 0.1, lowered from 0.9."""
    for flat in (0.1, 0.9):
        path = Coverage(flat, flat, minimum).path(T, N, K)
        np.testing.assert_allclose(path, beta, rtol=0, atol=1e-14)


def test_coverage_keeps_the_slope_where_it_can():
    path = Coverage(0.2, 0.6, 16).path(T, N, K)
    np.testing.assert_allclose(np.diff(path), 0.4 / (T - 1), rtol=1e-9)
    assert path.mean() == pytest.approx(0.5)
    steep = Coverage(0.0, 0.99, 31).path(T, N, K)
    assert steep.min() == 0
    assert steep.max() < HIGHEST


def test_without_a_budget_nobody_is_shut_out_all_the_same():
    path = Coverage(0.5, 0.5, 0).path(T, N, K)
    np.testing.assert_allclose(path, HIGHEST)


def test_after_the_last_round_the_last_beta_stays():
    policy = DimensionAware(0.2, "linear", 0.6)
    last = policy.marginals(TIERS, K, 0, T - 1, T)
    assert np.array_equal(policy.marginals(TIERS, K, 0, T + 5, T), last)
    constant = DimensionAware(0.4).marginals(TIERS, K, 0)
    assert np.array_equal(DimensionAware(0.4).marginals(TIERS, K, 0, 7, 3), constant)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta_schedule": "sine"}, "unknown beta_schedule 'sine': choose one of constant, linear"),
        ({"beta_end": 0.5}, "beta_end needs beta_schedule linear or cosine or coverage, not const"),
        (
            {"min_participations": 3},
            "min_participations needs beta_schedule coverage, not constant",
        ),
        ({"beta_schedule": "coverage"}, "beta_schedule coverage needs min_participations"),
        ({"beta_schedule": "linear", "beta_end": 1.0}, r"beta_end .*\[0, 1\), got 1\.0"),
        ({"beta_schedule": "cosine", "beta": float("nan")}, "beta .*got nan"),
        ({"beta_schedule": "coverage", "min_participations": -1}, "not negative, got -1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, message: str):
    with pytest.raises(HoflError, match=message):
        method("hofl", **options)


def test_coverage_no_policy_can_give_is_refused_before_the_run(tiny_folder: Path):
    options = {"beta_schedule": "coverage", "min_participations": 2}
    with pytest.raises(HoflError, match=r"uniform sampling expects only KT/N = 1\.5"):
        build_simulation(quick(tiny_folder, method=options))


def test_a_scheduled_run_stopped_and_resumed_ends_in_the_same_bits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    options = {"beta": 0.9, "beta_end": 0.0, "beta_schedule": "cosine", "local_steps": 1}
    config = quick(tiny_folder, rounds=5, method=options)
    whole = hofl.run(config, tmp_path / "whole")

    def stop(event: str, facts: dict) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "stopped", stop)
    resumed = hofl.resume(tmp_path / "stopped")
    assert adapter_bytes(resumed.path) == adapter_bytes(whole.path)
    assert resumed.summary["audit"] == whole.summary["audit"]
    experiment = build_simulation(hofl.read_config(str(whole.path / "config.toml")))
    first, last = (experiment.marginals(t, experiment.present(t)) for t in (0, 4))
    assert np.ptp(first) > np.ptp(last) == 0
