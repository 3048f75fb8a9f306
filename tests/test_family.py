"""The explanations of ``hofl methods``: one for every method, and what they say holds."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hofl.catchup import catches_up, rebuilds
from hofl.cli.commands import app
from hofl.family import EXPLAINED, GROUPS, down, up
from hofl.methods import METHODS
from support.models import BLOCKS, tiny
from support.runs import run_cli
from support.steps import participate, plan_for, tiny_for

each = pytest.mark.parametrize("name", METHODS)


def test_every_method_is_explained_and_nothing_else() -> None:
    assert EXPLAINED.keys() == METHODS.keys()
    assert {entry.group for entry in EXPLAINED.values()} == set(GROUPS)


@each
def test_what_goes_up_is_what_a_client_uploads(name: str) -> None:
    """Against a real upload of the method's own rule at the boundary that it cuts at."""
    method = METHODS[name]
    model = tiny_for(method.local.surrogate, "llama")
    boundary = int(method.boundary(np.array([2]), BLOCKS)[0])
    upload, _ = participate(model, plan_for(model, boundary, method.local))
    said = up(method)
    assert ("scalars" in said) == (upload.scalars.numel() > 0)
    assert ("whole difference" in said) == (len(upload.difference) == model.layout.size)
    assert ("difference" in said) == (len(upload.difference) > 0)


@each
def test_what_comes_down_is_what_a_plan_holds(name: str) -> None:
    model, method = tiny("llama"), METHODS[name]
    plan = plan_for(model, BLOCKS, method.local)
    assert ("w and" in down(name)) == bool(plan.vectors)
    assert ("mean scalars" in down(name)) == catches_up(method, model.layout)
    assert ("A alone" in down(name)) == rebuilds(method, model.layout)


@each
def test_a_method_is_explained_with_steps_settings_and_source(name: str) -> None:
    output = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["methods", name]).output
    for text in (*EXPLAINED[name].steps, EXPLAINED[name].source, METHODS[name].summary):
        assert text in output
    assert f"q = {METHODS[name].local.q}" in output
    for text in (EXPLAINED[name].client, EXPLAINED[name].server, GROUPS[EXPLAINED[name].group]):
        assert text in output, "who holds what, and the memory of each role"


@pytest.mark.skipif("HOFL_PAPER" not in os.environ, reason="HOFL_PAPER names no file")
@pytest.mark.parametrize(
    ("name", "label"), [("hosl", "hosl"), ("ho-sfl", "hosfl"), ("heron-sfl", "heron")]
)
def test_the_equation_of_a_surrogate_has_its_number_in_the_paper(name: str, label: str) -> None:
    before = Path(os.environ["HOFL_PAPER"]).read_text().partition(f"\\label{{eq:app-{label}}}")[0]
    number = before.count("\\begin{equation}")
    assert f"appendix A, Eq. ({number})" in EXPLAINED[name].equations


def test_the_list_says_of_every_group_who_holds_what() -> None:
    output = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["methods"]).output
    for sentence in (*GROUPS.values(), *(method.summary for method in METHODS.values())):
        assert sentence in output


def test_a_method_from_outside_is_listed_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", replace(METHODS["hofl"], summary="HO-FL, by me"))
    code, output = run_cli("methods")
    assert code == 0, output
    listed = output[output.index("added") :].splitlines()[1].split()
    assert " ".join(listed).startswith("mine HO-FL, by me E q scalars + the top's difference")
    code, output = run_cli("methods", "mine")
    assert code == 0, output
    assert "mine (added): HO-FL, by me" in output
    assert f"q = {METHODS['hofl'].local.q}" in output


def test_an_unknown_method_is_one_line() -> None:
    done = CliRunner().invoke(app, ["methods", "hosfl"])
    assert done.exit_code
    assert "unknown method 'hosfl': choose one of" in str(done.exception)
