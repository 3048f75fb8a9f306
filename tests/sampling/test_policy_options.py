"""Policies by name and options: what a configuration says is what samples, also when written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.experiment.runs import RunDirectory
from hofl.methods import METHODS, method, options_of
from hofl.sampling.policies import DimensionAware, Policy, Uniform, policy_from, policy_spec
from hofl.sampling.water_filling import WaterFilling
from support.runs import quick

VALUES = [
    Uniform(),
    DimensionAware(0.0),
    DimensionAware(0.25),
    DimensionAware(0.5, "coverage", 0.1, 3.0),
    DimensionAware(0.5, "linear"),
    WaterFilling(2.5),
    WaterFilling(2.5, 0.1, (1.0, 2.0, 3.0)),
]


@pytest.mark.parametrize("policy", VALUES, ids=repr)
@pytest.mark.parametrize("name", ["hofl", "fedavg"])
def test_a_policys_options_make_it_again_inside_any_method(policy: Policy, name: str) -> None:
    spec = policy_spec(policy)
    assert policy_from(**spec) == policy
    changed = method(name, policy=spec.pop("name"), **spec)
    assert changed.policy == policy
    assert method(name, **options_of(changed)) == changed


def test_a_spec_holds_required_options_and_those_that_are_not_at_their_defaults() -> None:
    assert policy_spec(DimensionAware(0.0)) == {"name": "dimension-aware", "beta": 0.0}
    assert policy_spec(WaterFilling(2.0, 0.0)) == {"name": "water-filling", "weight": 2.0}
    assert policy_spec(WaterFilling(2.0, 0.1)) == {
        "name": "water-filling",
        "weight": 2.0,
        "floor": 0.1,
    }


def test_options_without_a_name_change_the_methods_own_policy_or_find_their_own() -> None:
    assert METHODS["hofl"].policy == DimensionAware(0.75)
    assert method("hofl", beta=0.5).policy == DimensionAware(0.5)
    scheduled = method("hofl", beta_schedule="linear", beta_end=0.1).policy
    assert scheduled == DimensionAware(0.75, "linear", 0.1)
    assert method("fedavg", beta=0.5).policy == DimensionAware(0.5)
    assert method("hofl", weight=3.0).policy == WaterFilling(3.0)


def test_a_name_describes_a_policy_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolved configuration leaves out defaults: the method's own options must not fill them.

    Otherwise a run would resume under another policy than it was started with.
    """
    base = METHODS["hofl"]
    falling = DimensionAware(0.9, "linear", 0.1)
    monkeypatch.setitem(METHODS, "falling", replace(base, policy=falling))
    constant = method("falling", policy="dimension-aware", beta=0.9)
    assert constant.policy == DimensionAware(0.9)
    assert method("falling", **options_of(constant)) == constant
    assert method("hofl", policy="uniform").policy == Uniform()
    with pytest.raises(HoflError, match="policy 'dimension-aware' needs the option 'beta'"):
        method("hofl", policy="dimension-aware")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "greedy"}, "unknown policy 'greedy': choose one of uniform, dimension-aware"),
        ({"policy": {"name": ["uniform"]}}, "unknown policy .*: choose one of uniform"),
        ({"policy": "uniform", "beta": 0.5}, "'uniform' has no option 'beta': it takes no options"),
        ({"policy": "water-filling", "beta": 0.5}, "no option 'beta': it takes weight, floor"),
        ({"policy": "uniform", "beta": 0.5}, r"the change ~method\.policy\.beta removes it"),
        ({"policy": "water-filling"}, "'water-filling' needs the option 'weight'"),
        ({"beta": 0.5, "weight": 1.0}, "'dimension-aware' has no option 'weight'"),
        ({"weight": -1.0}, r"weight \(A\) must be finite and not negative, got -1"),
        ({"weight": 1.0, "costs": (1.0, -2.0)}, "costs must be finite and not negative: entry 1"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HoflError, match=message) as refusal:
        method("hofl", **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": "high"}, r"method\.policy\.beta must be float, got 'high'"),
        ({"beta": True}, r"method\.policy\.beta must be float, got True"),
        ({"beta": None}, r"method\.policy\.beta must be float, got None"),
        ({"beta": 0.5, "beta_schedule": 3}, r"method\.policy\.beta_schedule must be str, got 3"),
        ({"weight": 1.0, "costs": 3.0}, r"costs must be tuple\[float, \.\.\.\] \| None, got 3"),
        ({"weight": 1.0, "costs": [1.0, "x"]}, r"method\.policy\.costs must be float, got 'x'"),
    ],
)
def test_values_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HoflError, match=message):
        method("hofl", **options)


def test_values_are_read_as_a_file_writes_them() -> None:
    """TOML has lists, and whole numbers without a point."""
    read = policy_from("water-filling", weight=2, costs=[1, 2.5])
    assert read == WaterFilling(2.0, 0.0, (1.0, 2.5))
    assert isinstance(read, WaterFilling)
    assert read.costs is not None
    assert [type(value) for value in (read.weight, *read.costs)] == [float] * 3


def test_water_filling_runs_from_a_configuration_and_resumes_from_the_written_one(
    tiny_folder: Path, tmp_path: Path
) -> None:
    costs = [0.0, 0.0, 0.0, 9.0, 9.0, 9.0]
    options = {"policy": "water-filling", "weight": 1e-3, "floor": 0.0, "costs": costs}
    config = quick(tiny_folder, rounds=2, method={**options, "local_steps": 1})
    result = hofl.run(config, tmp_path / "run")
    assert result.summary["audit"]["realised"] == [2, 2, 2, 0, 0, 0]  # K = 3, and A is tiny
    written = build_simulation(RunDirectory(result.path).config())
    assert written.method.policy == WaterFilling(1e-3, 0.0, tuple(costs))


def test_without_costs_the_scores_are_the_costs(tiny_folder: Path) -> None:
    method = {"policy": "water-filling", "weight": 1e3}
    experiment = build_simulation(quick(tiny_folder, method=method))
    everyone = experiment.present(0)
    p = experiment.marginals(0, everyone)
    ranks = np.argsort(experiment.scores(everyone), kind="stable")
    assert (np.diff(p[ranks]) <= 0).all()
    assert p[ranks[0]] > p[ranks[-1]]


def test_costs_of_another_fleet_are_refused(tiny_folder: Path) -> None:
    method = {"weight": 1.0, "costs": [1.0, 2.0]}
    with pytest.raises(HoflError, match="2 costs were given for 6 clients"):
        build_simulation(quick(tiny_folder, method=method))
