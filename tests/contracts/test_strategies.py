"""What every strategy for devices promises, checked for each entry of ``STRATEGIES``."""

import json
from pathlib import Path
from typing import Any

import pytest

from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.experiment.device import build_device
from hofl.experiment.fleet_config import FleetConfig
from hofl.experiment.schema import json_schema
from hofl.memory.capability import Capability, Headroom
from hofl.memory.planner import Planner
from hofl.memory.strategies import STRATEGIES
from hofl.memory.workload import Cost
from support.runs import quick, run_cli

PLANNED = {"boundaries": [], "budgets": ["1GiB"], "clients": 2, "cohort": 2}


class AtTwo:
    """Take boundary 2, whatever the device; say so in the facts."""

    def __init__(self, own_rules: bool) -> None:
        self.own_rules, self.headroom = own_rules, Headroom(1, 0.0)

    def choose(self, planner: Planner, device: Capability) -> Cost:
        return planner.memory.at(2)

    def facts(self, planner: Planner) -> dict[str, Any]:
        return {"by": "two"}

    def choice_facts(self, planner: Planner, cost: Cost) -> dict[str, Any]:
        return {"doubled": 2 * cost.boundary}


def test_one_entry_is_all_that_a_configuration_and_its_schema_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(HoflError, match=r"fleet.strategy = 'two': should be one of best, paper\.$"):
        FleetConfig(strategy="two")
    monkeypatch.setitem(STRATEGIES, "two", AtTwo(own_rules=True))
    assert [FleetConfig(strategy=name).strategy for name in STRATEGIES] == [*STRATEGIES]
    schema = json_schema()["$defs"]["FleetConfig"]["properties"]["strategy"]
    assert schema["enum"] == ["best", "paper", "two"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_simulation_device_and_hofl_plan_ask_the_entry(
    name: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone entry of this name is followed everywhere: nobody knows what the name stands for."""
    monkeypatch.setitem(STRATEGIES, name, AtTwo(STRATEGIES[name].own_rules))
    config = quick(tiny_folder, fleet={**PLANNED, "strategy": name})
    experiment = build_simulation(config)
    assert experiment.config.fleet.boundaries == (2, 2)
    facts = experiment.memory_plan
    assert facts["by"] == "two"
    assert [row["doubled"] for row in facts["chosen"].values()] == [4]
    assert build_device(config, data=None, shard=0, memory="1GiB").choose().boundary == 2
    words = ("--budget", "1GiB", "--strategy", name, "--seq-len", "16", "--json")
    code, output = run_cli("plan", "--model", str(tiny_folder), *words)
    assert code == 0, output
    assert json.loads(output)["chosen"]["boundary"] == 2
    assert json.loads(output)["chosen"]["headroom_bytes"] == 1


@pytest.mark.parametrize("own_rules", [False, True])
def test_rules_of_their_own_are_refused_by_the_flag_and_not_by_the_name(
    own_rules: bool, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HO-SFL cuts all devices at one boundary."""
    for name in STRATEGIES:
        monkeypatch.setitem(STRATEGIES, name, AtTwo(own_rules))
        config = quick(tiny_folder, fleet={**PLANNED, "strategy": name}, method={"name": "ho-sfl"})
        if own_rules:
            with pytest.raises(HoflError, match=f"the strategy {name} gives every device"):
                build_simulation(config)
        else:
            assert build_simulation(config).config.fleet.boundaries == (2, 2)
