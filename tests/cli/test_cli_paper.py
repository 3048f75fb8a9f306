"""``hofl paper``: every recipe is listed and shown, with what this project ran of it."""

import json

import pytest

from hofl.cli.paper import COMPUTED, NAMES
from hofl.experiment.config import parse_config
from hofl.paper.studies import STUDIES
from support.runs import run_cli


def test_the_list_has_every_recipe_and_says_what_was_not_run() -> None:
    code, text = run_cli("paper")
    assert code == 0
    assert all(name in text for name in NAMES)
    assert {*NAMES} == {*COMPUTED, *STUDIES}
    assert "not run at the paper's scale" in " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_shown_with_what_this_project_ran_of_it(name: str) -> None:
    code, text = run_cli("paper", name, "--show")
    assert code == 0, text
    note = " ".join(text[text.rindex("note: ") :].split())
    assert "this project" in note
    assert "at the paper's scale" in note or "at that scale" in note


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_shown_resolves_to_the_configurations_that_would_run(name: str) -> None:
    code, text = run_cli("paper", name, "--show", "--json")
    assert code == 0, text
    shown = {(r["block"], r["arm"]): parse_config(r["config"]) for r in json.loads(text)["runs"]}
    assert shown == {
        (block.name, label): config
        for block in STUDIES[name].blocks()
        for label, config in block.configs().items()
    }
