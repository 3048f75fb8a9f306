"""Choosing beta without training: the paper's starting values, cap and counts."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import hofl
from hofl.choosing.guide import CANDIDATES, advise, allowed, coverage_cap
from hofl.cli.commands import app

PAPER = "coverage --clients 30 --cohort 6 --rounds 160 --boundaries 8,16,24 --blocks 28"
FLEET = {"clients": 30, "cohort": 6, "rounds": 160}


def output(words: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["beta", *words.split()])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("words", "beta"),
    [
        ("--data same", "0.75"),
        ("--data unknown", "0.5"),
        ("--data skewed", "0.25"),
        ("--data same --preferred narrow", "0.5"),
        ("--data skewed --preferred narrow", "0"),
        ("--data same --dimensions equal", "0"),
    ],
)
def test_scenarios_start_where_the_paper_says(words: str, beta: str) -> None:
    lines = output(f"guide {words}").splitlines()
    assert lines[0] == f"beta = {beta}"
    assert len(lines[1]) > 20, "a reason is given"


def test_the_table_holds_every_scenario() -> None:
    text = output("guide")
    rows = [line.split("│")[1:4] for line in text.splitlines() if line.startswith("│")]
    table = {tuple(cell.strip() for cell in row) for row in rows}
    assert table == {
        ("same", "broad", "0.75"),
        ("same", "narrow", "0.5"),
        ("unknown", "broad", "0.5"),
        ("unknown", "narrow", "0.25"),
        ("skewed", "broad", "0.25"),
        ("skewed", "narrow", "0"),
        ("any", "-", "0"),
    }


def test_more_worries_never_raise_the_starting_value() -> None:
    for data in ("same", "unknown", "skewed"):
        plain = advise(data).beta
        assert advise(data, narrow=True).beta < plain
        assert advise(data, dimensions_differ=False).beta == 0


@pytest.mark.parametrize(("beta", "least"), [(0.0, 32), (0.25, 24), (0.5, 16), (0.75, 8)])
def test_the_papers_participations_and_their_caps(beta: float, least: float) -> None:
    """24 / 16 / 8 at 0.25 / 0.5 / 0.75, and each count gives its beta back as the cap."""
    facts = json.loads(output(f"{PAPER} --min-participations {least} --json"))
    assert facts["cap"] == pytest.approx(beta)
    assert facts["allowed"] == [b for b in CANDIDATES if b <= beta]
    expected = next(row["expected"] for row in facts["participations"] if row["beta"] == beta)
    assert min(expected) == pytest.approx(least)
    assert sum(expected) == pytest.approx(6 * 160)
    tiers = np.array(facts["boundaries"])
    assert [(tiers == tier).sum() for tier in (8, 16, 24)] == [10, 10, 10]


def test_the_coverage_table_shows_seats_and_the_verdict() -> None:
    text = output(f"{PAPER} --min-participations 16")
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[2] == ["0.5", "16", "96", "4", "1", "1", "yes"]
    assert cells[3] == ["0.75", "8", "128", "5", "0.5", "0.5", "no"]
    assert "beta <= 0.5" in text
    assert "any beta < 1" in output(f"{PAPER} --min-participations 0")


def test_candidates_are_filtered_by_the_cap() -> None:
    assert allowed((0.75, 0.0, 0.5), None, **FLEET) == (0.0, 0.5, 0.75)
    assert allowed(CANDIDATES, 20, **FLEET) == (0.0, 0.25)
    with pytest.raises(hofl.HoflError, match=r"no candidate is within .* beta <= 0\.375"):
        allowed((0.5, 0.75), 20, **FLEET)


@pytest.mark.parametrize("least", [-1, 32.1, float("nan")])
def test_an_impossible_budget_is_refused(least: float) -> None:
    with pytest.raises(hofl.HoflError, match=r"cannot be met: .*\[0, 32\]"):
        coverage_cap(least, **FLEET)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("guide --data odd", "unknown kind of data 'odd': choose one of same, unknown, skewed"),
        ("guide --dimensions some", "--dimensions is differ or equal, got 'some'"),
        ("coverage --cohort 31", "cohort of 31 cannot be drawn from 30 clients"),
        ("coverage --min-participations 33", "[0, KT/N] = [0, 32]"),
    ],
)
def test_a_mistake_is_one_clear_error(words: str, message: str) -> None:
    error = CliRunner().invoke(app, ["beta", *words.split()]).exception
    assert isinstance(error, hofl.HoflError)
    assert message in str(error)
    assert "\n" not in str(error)
