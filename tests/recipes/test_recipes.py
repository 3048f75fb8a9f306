"""Every recipe that ships is found by name and names a method that can be run."""

import pytest

from hofl.experiment.config import read_config
from hofl.methods import method
from hofl.recipes import recipes


def test_recipe_is_found_by_name() -> None:
    assert "demo" in recipes()
    assert read_config("demo").name == "demo"
    assert read_config("demo", ["rounds=2"]).rounds == 2


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_valid(name: str) -> None:
    chosen = read_config(name).method
    method(chosen.name, **chosen.options()).local.check()
