"""``hofl sample``: the paper's numbers, the cohorts of a real run, and one line per mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from typer.testing import CliRunner

import hofl
from hofl.cli.commands import app
from hofl.experiment.build import build_simulation
from hofl.sampling.statistics import load_statistics
from hofl.sampling.water_filling import water_filling
from support.runs import quick

RUN = "--clients 6 --cohort 3 --boundaries 1,2,3 --blocks 4 --seed 5"
PAPER = "--clients 30 --cohort 6 --boundaries 8,16,24 --blocks 28 --rounds 160"


def output(words: str) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["sample", *words.split()])
    assert result.exit_code == 0, result.output
    return result.output


def facts(words: str) -> dict:
    return json.loads(output(f"{words} --json"))


@pytest.mark.parametrize(
    ("beta", "tiers", "least"), [(0.5, [4, 1, 1], 16), (0.75, [5, 0.5, 0.5], 8)]
)
def test_expected_counts_are_the_papers(beta: float, tiers: list[float], least: float) -> None:
    shown = facts(f"{PAPER} --beta {beta}")
    assert "audit" not in shown
    assert min(shown["expected"]) == pytest.approx(least)
    for boundary, seats in zip((8, 16, 24), tiers, strict=True):
        members = [
            e for e, b in zip(shown["expected"], shown["boundaries"], strict=True) if b == boundary
        ]
        assert len(members) == 10
        assert sum(members) / 160 == pytest.approx(seats)


def test_simulation_is_audited_and_shown_by_tier_and_by_client() -> None:
    audit = facts(f"{PAPER} --beta 0.75 --simulate")["audit"]
    assert sum(audit["realised"]) == 6 * 160
    assert audit["p_value"] > 0.01
    text = output(f"{PAPER} --beta 0.75 --simulate")
    assert "expected per round" in text
    assert "sampling audit: participations as expected" in text
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    tiers, clients = rows[:3], rows[3:]
    assert [row[2].strip() for row in tiers] == ["5", "0.5", "0.5"]
    assert [int(row[3]) for row in clients] == audit["realised"]


def test_large_fleet_is_shown_by_tier_only() -> None:
    text = output("--clients 2000 --cohort 100 --rounds 3")
    assert "2000 clients: --json lists each of them" in text
    assert len(text.splitlines()) < 12


def test_schedule_meets_its_coverage() -> None:
    words = f"{PAPER} --schedule coverage --beta 0.9 --beta-end 0.1 --min-participations 20"
    assert min(facts(words)["expected"]) == pytest.approx(20)


def cohorts_of(run: Path) -> list[list[int]]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["cohort"] for row in rows if row["round"] > 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"method": {"beta": 0.6, "beta_end": 0.2, "beta_schedule": "linear"}},
            "--beta 0.6 --beta-end 0.2 --schedule linear",
        ),
        ({"fleet": {"seed": 9}}, "--fleet-seed 9"),
        ({"fleet": {"dropout": 0.3}}, ""),
        ({"method": {"policy": "uniform"}}, "--policy uniform"),
        ({"method": {"q": 5}, "adapter": {"kind": "full"}, "rounds": 2}, "--rounds 2"),
    ],
    ids=["schedule", "fleet seed", "dropout", "uniform", "other dimensions"],
)
def test_cohorts_are_those_of_a_run_with_the_same_settings(
    tiny_folder: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Boundaries order clients as d_ZO does, whatever blocks and q are; dropouts are drawn too."""
    quicker = {"rounds": 6, **changes, "method": {"local_steps": 1, **changes.get("method", {})}}
    run = hofl.run(quick(tiny_folder, **quicker), tmp_path / "run")
    shown = facts(f"{RUN} --rounds 6 {words} --simulate")
    assert shown["same_as_run"]
    assert shown["cohorts"] == cohorts_of(run.path)
    assert shown["audit"] == run.summary["audit"]


def test_a_policy_that_uses_the_size_of_dimensions_needs_them(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Water-filling on d_ZO / q: a run's cohorts with both, and an honest line without them."""
    size = build_simulation(quick(tiny_folder)).layout.cut(1)
    method = {"weight": 4.0 * size, "floor": 0.1, "q": 3, "local_steps": 1}
    run = hofl.run(quick(tiny_folder, rounds=6, method=method), tmp_path / "run")
    words = f"{RUN} --rounds 6 --weight {4.0 * size} --floor 0.1 --q 3"
    shown = facts(f"{words} --dims-per-block {size} --simulate")
    assert shown["same_as_run"]
    assert shown["cohorts"] == cohorts_of(run.path)
    assert shown["expected"] == run.summary["audit"]["expected"]
    guessed = facts(f"{words} --simulate")
    assert not guessed["same_as_run"]
    assert guessed["expected"] != shown["expected"]
    assert "A run draws other cohorts" in output(words)
    assert "draws the same cohorts" in output(f"{words} --dims-per-block {size}")


@pytest.mark.parametrize(
    ("changes", "excepted"),
    [
        ({"server": {"secret": "random"}}, "hofl server draws from a secret"),
        ({"method": {"name": "ho-sfl", "beta": 0.75}}, "below its own boundary"),
        ({"method": {"name": "recompute", "beta": 0.75}}, "trains by zeroth order"),
    ],
    ids=["random secret", "one boundary for all", "exact bottoms"],
)
def test_the_promise_excepts_runs_that_draw_other_cohorts(
    tiny_folder: Path, changes: dict[str, Any], excepted: str
) -> None:
    plain, other = (build_simulation(quick(tiny_folder, rounds=20, **c)) for c in ({}, changes))
    drawn, others = ([e.cohort(t, e.present(t)) for t in range(20)] for e in (plain, other))
    assert facts(f"{RUN} --rounds 20 --simulate")["cohorts"] == drawn != others
    assert excepted in output(f"{RUN} --rounds 20")


def test_blocks_may_differ_in_size() -> None:
    words = "--clients 4 --cohort 2 --boundaries 0,1,2,3 --blocks 3 --rounds 10"
    shown = facts(f"{words} --weight 40 --q 2 --dims-per-block 30,2,8")
    p = water_filling(40.0, np.array([0.0, 30.0, 32.0, 40.0]) / 2, 2, 0.0)
    assert shown["expected"] == pytest.approx(10 * 2 * p, abs=1e-6)


def test_every_policy_can_be_shown() -> None:
    """Uniform by hand, water-filling by SciPy's own solver on the same program."""
    fleet = "--clients 9 --cohort 3 --boundaries 2,4,8 --blocks 8 --rounds 100"
    assert facts(f"{fleet} --policy uniform")["expected"] == pytest.approx([100 * 3 / 9] * 9)
    shown = facts(f"{fleet} --weight 20 --floor 0.3")  # the option finds its policy
    costs = np.array(shown["boundaries"], dtype=float)
    best = minimize(
        lambda p: 20 * np.sum((p - 1 / 9) ** 2) + costs @ p,
        np.full(9, 1 / 9),
        bounds=[(0.3 / 9, 1 / 3)] * 9,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.array(shown["expected"]) / 300 == pytest.approx(best.x, abs=1e-5)
    assert np.ptp(shown["expected"]) > 30  # not uniform


def test_measured_statistics_bring_their_fleet_and_costs(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    rng = np.random.default_rng(0)
    values = {
        "boundaries": [1, 2, 3, 3],
        "means": rng.normal(size=(4, 2)).tolist(),
        "variances": [1.0, 5.0, 9.0, 9.0],
        "gradient": [0.0, 0.0],
        "smoothness": 1.0,
        "step": 1.0,
    }
    file.write_text(json.dumps(values))
    shown = facts(f"--clients 4 --cohort 2 --statistics {file} --floor 0.2 --simulate")
    measured, _ = load_statistics(str(file))
    p = water_filling(measured.weight, measured.costs(2), 2, 0.2)
    assert shown["boundaries"] == [1, 2, 3, 3]
    assert shown["expected"] == pytest.approx(160 * 2 * p)
    assert sum(shown["audit"]["realised"]) == 320
    for words, message in [
        (f"--statistics {file}", "holds 4 clients: give --clients 4"),
        (f"--clients 4 --cohort 2 --statistics {file} --weight 2", "leave weight out"),
        (f"--clients 4 --cohort 2 --statistics {file} --policy uniform", "is 'uniform'"),
    ]:
        error = CliRunner().invoke(app, ["sample", *words.split()]).exception
        assert isinstance(error, hofl.HoflError)
        assert message in str(error)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policy best", "unknown policy 'best': choose one of uniform, dimension-aware"),
        ("--policy uniform --beta 0.5", "policy 'uniform' has no option 'beta'"),
        ("--policy water-filling", "policy 'water-filling' needs the option 'weight'"),
        ("--policy dimension-aware", "policy 'dimension-aware' needs the option 'beta'"),
        ("--blocks 4 --boundaries 1,2,3 --dims-per-block 5,6", "one number for all blocks or 4"),
        ("--dims-per-block 0", "of at least 1"),
        ("--dims-per-block x", "--dims-per-block 'x': write whole numbers"),
        ("--cohort 31", "cohort of 31 cannot be drawn from 30 clients"),
        ("--boundaries 8,40", "--boundaries holds 40, but the model has 28 blocks"),
        ("--boundaries 8,x", "--boundaries '8,x': write whole numbers"),
        ("--beta 1", "beta must lie in [0, 1), got 1.0"),
        ("--beta nan", "beta must lie in [0, 1), got nan"),
        ("--schedule sine", "unknown beta_schedule 'sine'"),
        ("--schedule coverage --min-participations 33", "KT/N = 32 per client"),
    ],
)
def test_a_mistake_is_one_clear_error(words: str, message: str) -> None:
    error = CliRunner().invoke(app, ["sample", *words.split()]).exception
    assert isinstance(error, hofl.HoflError)
    assert message in str(error)
    assert "\n" not in str(error)
