"""hofl plan, memory and profile: what they print, and one clear line for every mistake."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError
from hofl.memory.cohort import cohort_demand, equal_demand
from hofl.sampling.policies import DimensionAware
from support.depround_law import depround_law

FIELDS = {
    "boundary",
    "peak_bytes",
    "zo_params",
    "fo_params",
    "uplink_bytes",
    "relative_compute",
    "checkpointing",
    "micro_batch",
    "micro_tokens",
}


def output(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def small(tiny_folder: Path) -> list[str]:
    return ["--model", str(tiny_folder), "--batch-size", "4", "--seq-len", "32"]


@pytest.fixture(scope="module")
def facts(small: list[str]) -> dict:
    return json.loads(output("plan", *small, "--budget", "1GiB", "--json"))


def test_the_plan_as_json(facts: dict, tiny_folder: Path) -> None:
    shape = {"model", "batch_size", "seq_len", "tokens", "padded_tokens"}
    assert set(facts) == {*shape, "boundaries", "options", "chosen"}
    assert (facts["model"], facts["batch_size"], facts["seq_len"]) == (str(tiny_folder), 4, 32)
    assert [row["boundary"] for row in facts["boundaries"]] == [0, 1, 2, 3, 4]
    for row in facts["boundaries"]:
        assert set(row) == FIELDS
        assert (row["checkpointing"], row["micro_batch"]) == (0, 0)
    for row in facts["options"]:
        assert set(row) >= FIELDS
        assert row["checkpointing"] or row["micro_batch"]
    assert facts["chosen"] == facts["boundaries"][0]


def test_a_budget_between_two_peaks_chooses_the_lower_one(facts: dict, small: list[str]) -> None:
    peaks = [row["peak_bytes"] for row in facts["boundaries"]]
    budget = str((peaks[0] + peaks[1]) // 2)
    assert "boundary 1: peak" in output("plan", *small, "--budget", budget)
    best = output("plan", *small, "--budget", budget, "--strategy", "best")
    assert "boundary 0, " in best.splitlines()[-2]


def test_the_table_fits_a_terminal_and_a_figure_is_written(
    small: list[str], tmp_path: Path
) -> None:
    figure = tmp_path / "plan.svg"
    lines = output("plan", *small, "--plot", str(figure)).splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines[:-1])
    assert "█" in lines[2]
    assert b"Peak memory of a device" in figure.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1KiB"], r"nothing fits 1\.0 KiB: the smallest needs \d+\.\d KiB"),
        (["--budget", "much"], "cannot read 'much' as an amount of memory"),
        (["--strategy", "magic"], "unknown strategy 'magic': choose one of paper, best"),
        (["--seq-len", "65"], "seq_len 65 exceeds the model's window of 64"),
        (["--answer-tokens", "33"], r"answer_tokens must lie in 0\.\.32"),
        (["--compute-dtype", "int8"], "unknown dtype 'int8'"),
        (["--q", "0"], "q must be at least 1"),
        (["--method", "magic"], "unknown method 'magic'"),
        (["--model", "/no/such/folder"], "cannot load model '/no/such/folder'"),
    ],
)
def test_a_mistake_says_what_was_got(words: list[str], message: str, small: list[str]) -> None:
    with pytest.raises(HoflError, match=message):
        output("plan", *small, *words)


def test_cohorts_of_tiers_and_of_budgets(facts: dict, small: list[str]) -> None:
    rows = facts["boundaries"]
    words = ["memory", *small, "--clients", "6", "--cohort", "2", "--rounds", "20"]
    by_tier = json.loads(output(*words, "--fleet", "1,2,3", "--json"))
    fleet = ",".join(str(rows[b]["peak_bytes"]) + "B" for b in (1, 2, 3))
    by_budget = json.loads(output(*words, "--fleet", fleet, "--json"))
    assert by_budget == by_tier  # each budget is just enough for its boundary
    uniform, *_, fedavg, _ = by_tier["demands"]
    assert fedavg["expected"] == 2 * rows[0]["peak_bytes"]
    mean = sum(rows[b]["peak_bytes"] for b in (1, 2, 3)) / 3
    assert uniform["expected"] == pytest.approx(2 * mean)


@pytest.mark.parametrize(
    "words", [["profile", "--boundaries", "²"], ["memory", "--fleet", "²"]], ids=lambda w: w[0]
)
def test_what_only_looks_like_a_number_is_one_line(words: list[str], small: list[str]) -> None:
    with pytest.raises(HoflError, match="'²'"):
        output(words[0], *small, *words[1:])


def test_expected_demand_is_the_mean_over_all_cohorts() -> None:
    """Against the exact law of DepRound, every order and every coin."""
    dims, peaks, k, beta = [10, 20, 30, 40], [9, 7, 4, 2], 2, 0.5
    u, r = Fraction(1, 4), [Fraction(1, 2), Fraction(1, 2), Fraction(0), Fraction(0)]
    p = [(1 - Fraction(1, 2)) * u + Fraction(1, 2) * share for share in r]
    law = depround_law([k * share for share in p])
    mean = sum(chance * sum(peaks[i] for i in cohort) for cohort, chance in law.items())
    found = cohort_demand("x", DimensionAware(beta), dims, peaks, cohort=k, rounds=4000, seed=3)
    assert found.expected == pytest.approx(float(mean))
    spread = np.sqrt(
        sum(float(c) * (sum(peaks[i] for i in s) - float(mean)) ** 2 for s, c in law.items())
    )
    assert abs(found.simulated - found.expected) < 4 * spread / np.sqrt(4000)
    assert equal_demand("y", 5, 6).expected == 30


@pytest.mark.parametrize("option", [[], ["--stream-bottom"]])
def test_a_profile_shows_what_was_predicted_and_measured(
    option: list[str], small: list[str]
) -> None:
    """PyTorch's own allocator, in a process of its own, counts what was predicted."""
    words = ["profile", *small, "--boundaries", "2", "--local-steps", "2", "--runs", "1"]
    found = json.loads(output(*words, *option, "--device", "cpu", "--json"))
    (row,) = found["measured"]
    assert row["predicted_bytes"] == pytest.approx(row["allocated_bytes"], rel=0.01)
    assert row["resident_bytes"] > 0
    with pytest.raises(HoflError, match="write whole numbers from 0 to 4"):
        output("profile", *small, "--boundaries", "5")
