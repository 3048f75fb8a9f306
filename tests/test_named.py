"""Policies by name: what a configuration says is what samples, and it survives being written."""

from pathlib import Path

import numpy as np
import pytest

import hofl
from hofl.errors import HoflError
from hofl.experiment.build import build
from hofl.experiment.runs import RunDirectory
from hofl.methods import METHODS, method, options_of
from hofl.sampling.named import named_policy, policy_options
from hofl.sampling.policies import DimensionAware, Policy, Uniform
from hofl.sampling.schedules import Coverage, Scheduled
from hofl.sampling.water_filling import WaterFilling
from runs import quick

VALUES = [
    Uniform(),
    DimensionAware(0.25),
    Scheduled(Coverage(0.5, 0.1, 3.0)),
    WaterFilling(2.5),
    WaterFilling(2.5, 0.1, (1.0, 2.0, 3.0)),
]


@pytest.mark.parametrize("policy", VALUES, ids=repr)
@pytest.mark.parametrize("name", ["hofl", "fedavg"])
def test_a_policys_options_make_it_again_inside_any_method(policy: Policy, name: str) -> None:
    assert named_policy(**policy_options(policy)) == policy
    changed = method(name, **policy_options(policy))
    assert changed.policy == policy
    assert method(name, **options_of(changed)) == changed


def test_an_option_finds_its_policy_and_keeps_the_others_of_its_kind() -> None:
    assert method("fedavg", beta=0.5).policy == DimensionAware(0.5)
    assert method("hofl", weight=3.0).policy == WaterFilling(3.0)
    assert method("hofl", policy="uniform").policy == Uniform()
    assert METHODS["hofl"].policy == DimensionAware(0.75)
    assert method("hofl", policy="dimension-aware").policy == DimensionAware(0.75)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "greedy"}, "unknown policy 'greedy': choose one of uniform, dimension-aware"),
        ({"policy": "uniform", "beta": 0.5}, "'uniform' has no option 'beta': it takes no options"),
        ({"policy": "water-filling", "beta": 0.5}, "no option 'beta': it takes weight, floor"),
        ({"policy": "water-filling"}, "'water-filling' needs 'weight'"),
        ({"beta": 0.5, "weight": 1.0}, "'dimension-aware' has no option 'weight'"),
        ({"weight": -1.0}, r"weight \(A\) must be finite and not negative, got -1"),
        ({"weight": 1.0, "costs": (1.0, -2.0)}, "costs must be finite and not negative: entry 1"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: dict, message: str) -> None:
    with pytest.raises(HoflError, match=message):
        method("hofl", **options)


def test_water_filling_runs_from_a_configuration_and_resumes_from_the_written_one(
    tiny_folder: Path, tmp_path: Path
) -> None:
    costs = [0.0, 0.0, 0.0, 9.0, 9.0, 9.0]
    options = {"policy": "water-filling", "weight": 1e-3, "floor": 0.0, "costs": costs}
    config = quick(tiny_folder, rounds=2, method={**options, "local_steps": 1})
    result = hofl.run(config, tmp_path / "run")
    assert result.summary["audit"]["realised"] == [2, 2, 2, 0, 0, 0]  # K = 3, and A is tiny
    written = build(RunDirectory(result.path).config())
    assert written.method.policy == WaterFilling(1e-3, 0.0, tuple(costs))


def test_without_costs_the_scores_are_the_costs(tiny_folder: Path) -> None:
    method = {"policy": "water-filling", "weight": 1e3}
    experiment = build(quick(tiny_folder, method=method))
    p = experiment.marginals(0)
    ranks = np.argsort(experiment.scores(), kind="stable")
    assert (np.diff(p[ranks]) <= 0).all()
    assert p[ranks[0]] > p[ranks[-1]]


def test_costs_of_another_fleet_are_refused(tiny_folder: Path) -> None:
    method = {"weight": 1.0, "costs": [1.0, 2.0]}
    with pytest.raises(HoflError, match="2 costs were given for 6 clients"):
        build(quick(tiny_folder, method=method))
