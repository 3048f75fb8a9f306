"""``hofl config``: values with their origins, differences, the schema."""

import json
import tomllib
from pathlib import Path

import pytest

from hofl.experiment.config import parse_config, read_config
from hofl.experiment.method import build_method
from hofl.recipes import recipes
from support.runs import run_cli

TEXT = """
rounds = 9
[model]
name = "some/model"
[method.policy]
beta = 0.25
[custom]
train = "a.csv"
test = "b.csv"
labels = { good = "yes", bad = "no" }
[task]
name = "custom"
"""


@pytest.mark.parametrize("recipe", recipes())
def test_what_is_shown_of_a_recipe_is_toml_that_reads_as_the_recipe(recipe: str) -> None:
    code, output = run_cli("config", "show", recipe)
    assert code == 0, output
    assert parse_config(tomllib.loads(output)).fleet == read_config(recipe).fleet


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "own.toml"
    path.write_text(TEXT)
    return str(path)


def shown(*words: str) -> dict[str, dict]:
    code, output = run_cli("config", "show", *words, "--json")
    assert code == 0, output
    return json.loads(output)


def test_every_value_is_shown_with_its_origin(file: str) -> None:
    told = shown(file, "seed=3", "method.optimizer.lr=0.5", "method.q=4")
    for name, value, origin in (
        ("rounds", 9, file),
        ("seed", 3, "command line"),
        ("adapter.rank", 8, "default"),
        ("method.policy.beta", 0.25, file),
        ("method.policy.name", "dimension-aware", "method hofl"),
        ("method.optimizer.lr", 0.5, "command line"),
        ("method.optimizer.weight_decay", 5e-4, "method hofl"),
        ("method.q", 4, "command line"),
        ("method.mu", 1e-3, "method hofl"),
        ("method.name", "hofl", "default"),
        ("custom.labels", {"good": "yes", "bad": "no"}, file),
        ("task.max_length", None, "default"),
    ):
        assert told[name] == {"value": value, "origin": origin}, name
    assert shown("demo")["rounds"] == {"value": 6, "origin": "recipe demo"}


def test_a_part_given_by_name_and_a_removed_key_are_seen(file: str) -> None:
    told = shown(file, "method.policy=uniform")
    assert told["method.policy.name"] == {"value": "uniform", "origin": "command line"}
    assert "method.policy.beta" not in told
    told = shown(file, "method.policy={beta=0.5}", "custom.labels.good=fine", "method.lr=0.5")
    assert told["method.policy.beta"] == {"value": 0.5, "origin": "command line"}
    assert told["method.policy.name"]["origin"] == "method hofl"
    assert told["custom.labels"]["origin"] == "command line"
    assert told["method.optimizer.lr"] == {"value": 0.5, "origin": "command line"}
    told = shown(file, "~method.policy.beta", "~rounds")
    assert told["method.policy.beta"] == {"value": 0.75, "origin": "method hofl"}
    assert told["rounds"] == {"value": 160, "origin": "default"}


@pytest.mark.parametrize("changes", [[], ["method.policy=uniform"], ["method.name=hiso"]], ids=str)
def test_what_is_shown_is_toml_that_means_the_same(file: str, changes: list[str]) -> None:
    code, output = run_cli("config", "show", file, *changes)
    assert code == 0
    again, config = parse_config(tomllib.loads(output)), read_config(file, changes)
    assert build_method(again) == build_method(config)
    assert again.model_copy(update={"method": config.method}) == config


def test_differences_are_those_keys_and_no_others(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TEXT.replace("beta = 0.25", "beta = 0.75").replace("rounds = 9", ""))
    code, output = run_cli("config", "diff", file, str(other))
    assert code == 0
    assert output.splitlines() == [
        f"rounds: 9 ({file}) -> 160 (default)",
        f"method.policy.beta: 0.25 ({file}) -> 0.75 ({other})",
    ]
    assert run_cli("config", "diff", file, file) == (0, "no difference\n")


def test_a_mistake_is_the_readers_own_line(file: str) -> None:
    code, output = run_cli("config", "show", file, "fleet.cohort=0")
    assert code == 2
    assert output == (
        "error: configuration: fleet.cohort = 0: input should be greater than or equal to 1.\n"
    )


def test_the_schema_is_printed_as_json() -> None:
    code, output = run_cli("config", "schema")
    assert code == 0
    assert json.loads(output)["$defs"]["AdapterConfig"]["properties"]["rank"]["minimum"] == 1
