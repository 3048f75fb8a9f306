"""The schema of configurations: it accepts and refuses what the reader does."""

import json
import tomllib
from typing import Any

import pytest

from hofl.core.errors import HoflError
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.runs import plain_values
from hofl.experiment.schema import json_schema
from hofl.recipes import recipe_text, recipes
from support.json_schemas import fits

MODEL = {"model": {"name": "m"}}
DEVICE = {"memory": "2GiB"}
GOOD: list[dict[str, Any]] = [
    {},
    {"rounds": 1, "seed": 2**63 - 1, "name": "x" * 64},
    {"fleet": {"boundaries": [1, 0.5], "budgets": ["2GiB"], "devices": [DEVICE]}},
    {"method": {"policy": {"beta": 0.5}, "optimizer": "sgd", "mu": 1, "q": 4}},
    {"custom": {"train": ["a.csv", "b.csv"], "test": "c.csv", "labels": {"a": "b"}}},
    {"server": {"max_norm": float("inf"), "secret": "random"}},
    {"model": {"name": "m", "storage_dtype": "q4_1"}},
    {"evaluation": {"test": False, "holdout": 0.5, "curve_examples": 0}},
]
BAD: list[dict[str, Any]] = [
    {"model": {}},
    {"roundz": 3},
    {"rounds": 0},
    {"rounds": 1.5},
    {"rounds": "3"},
    {"rounds": True},
    {"seed": 2**63},
    {"name": "x" * 65},
    {"fleet": {"dropout": 1.0}},
    {"fleet": {"boundaries": ["half"]}},
    {"fleet": {"boundaries": 3}},
    {"fleet": {"devices": [{}]}},
    {"fleet": {"devices": [{**DEVICE, "disc": "1GiB"}]}},
    {"fleet": {"devices": [{**DEVICE, "gflops": 0}]}},
    {"fleet": {"strategy": "good"}},
    {"method": {"q": 2.5}},
    {"method": {"policy": 3}},
    {"method": {"lr_schedule": "cosine"}},
    {"custom": {"train": [1], "test": "c.csv"}},
    {"server": {"max_ratio": 1}},
    {"server": {"verify": 1}},
    {"server": {"secret": "dice"}},
    {"model": {"name": "m", "storage_dtype": "int8"}},
    {"engine": 4},
]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_what_the_schema_accepts_the_reader_accepts(values: dict, schema: dict) -> None:
    assert fits({**MODEL, **values}, schema, schema)
    assert parse_config({**MODEL, **values})


@pytest.mark.parametrize("values", BAD, ids=lambda values: str(values)[:50])
def test_what_the_schema_refuses_the_reader_refuses_in_one_line(values: dict, schema: dict) -> None:
    assert not fits({**MODEL, **values}, schema, schema)
    with pytest.raises(HoflError, match=r"^configuration: [^\n]+[.?]$"):
        parse_config({**MODEL, **values})


def test_the_schema_is_json_and_every_key_is_described(schema: dict) -> None:
    json.dumps(schema, allow_nan=False)
    for name, section in schema["$defs"].items():
        for key, field in section["properties"].items():
            assert field.get("description", "").endswith((".", "answers.")), f"{name}.{key}"


def test_recipes_and_the_configuration_of_a_run_fit_the_schema(schema: dict) -> None:
    for name in recipes():
        assert fits(tomllib.loads(recipe_text(name)), schema, schema), name
    whole = plain_values(ExperimentConfig.model_validate(MODEL))
    assert fits(json.loads(json.dumps({"base": ".", **whole})), schema, schema)
