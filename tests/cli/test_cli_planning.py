"""hofl plan, memory and profile: what they print, and one clear line for every mistake."""

import json
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError
from hofl.experiment.config import parse_config
from hofl.memory.capability import MEASURED
from hofl.memory.cohort import cohort_demand, equal_demand
from hofl.models.quantised import FORMS
from hofl.sampling.policies import DimensionAware
from support.depround_law import depround_law

FIELDS = {
    "boundary",
    "bottom",
    "exact_params",
    "zo_params",
    "fo_params",
    "checkpointing",
    "micro_batch",
    "micro_tokens",
    "stream",
    "storage_dtype",
    "uplink_bits",
    "peak_bytes",
    "relative_compute",
    "uplink_bytes",
    "read_bytes",
    "plan",
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
    return json.loads(output("plan", *small, "--budget", "1GiB", "--all", "--json"))


def test_the_plan_as_json(facts: dict, tiny_folder: Path) -> None:
    shape = {"model", "batch_size", "seq_len", "tokens", "padded_tokens"}
    assert set(facts) == {*shape, "chosen", "alternatives", "boundaries", "options"}
    assert (facts["model"], facts["batch_size"], facts["seq_len"]) == (str(tiny_folder), 4, 32)
    assert [row["boundary"] for row in facts["boundaries"]] == [0, 1, 2, 3, 4]
    for row in facts["boundaries"]:
        assert set(row) == FIELDS
        assert (row["checkpointing"], row["micro_batch"]) == (0, 0)
    for row in facts["options"]:
        assert row["checkpointing"] or row["micro_batch"]
    chosen = facts["chosen"]
    assert set(chosen) == {*FIELDS, "headroom_bytes"}
    assert (chosen["boundary"], chosen["bottom"], chosen["uplink_bits"]) == (0, "recompute", 4)
    assert (chosen["zo_params"], chosen["storage_dtype"]) == (0, "bfloat16")
    names = [row["name"] for row in facts["alternatives"]]
    assert names == [
        "plan",
        "hybrid order (the paper)",
        "exact",
        "exact, streamed",
        "frozen bottom",
        "pure zeroth order",
    ]


def test_a_budget_between_two_peaks_of_the_paper_chooses_the_lower_one(
    facts: dict, small: list[str]
) -> None:
    peaks = [row["peak_bytes"] for row in facts["boundaries"]]
    budget = str((peaks[0] + peaks[1]) // 2)
    shown = output("plan", *small, "--budget", budget, "--strategy", "paper")
    assert "boundary 1, zeroth-order bottom" in " ".join(shown.split())


def test_the_answer_comes_first_and_ends_in_a_configuration(
    small: list[str], tmp_path: Path
) -> None:
    """What is written is read by a run, and plans the same device."""
    figure, file = tmp_path / "plan.svg", tmp_path / "fleet.toml"
    words = ["--budget", "1GiB", "--no-backward", "--uplink", "2MiB"]
    shown = output("plan", *small, *words, "--plot", str(figure), "--write", str(file))
    lines = shown.splitlines()
    assert lines[0].startswith("Train 0 of ")
    assert "by zeroth order: boundary 4" in lines[0]
    values = tomllib.loads(file.read_text())
    expected = {"memory": "1GiB", "backward": False, "uplink": "2MiB"}
    assert values["fleet"]["devices"] == [expected]
    config = parse_config(values)
    assert config.fleet.devices[0].backward is False
    assert b"Peak memory of a device" in figure.read_bytes()
    with pytest.raises(HoflError, match="exists already"):
        output("plan", *small, *words, "--write", str(file))


def test_every_row_names_the_form_of_its_weights(facts: dict, small: list[str]) -> None:
    rows = [*facts["alternatives"], *facts["boundaries"], *facts["options"]]
    words = ["--budget", "1GiB", "--strategy", "paper", "--storage-dtype", "float32", "--json"]
    paper = json.loads(output("plan", *small, *words))["chosen"]
    assert {row["storage_dtype"] for row in rows} == {"bfloat16"}
    assert (paper["storage_dtype"], paper["headroom_bytes"]) == ("float32", 0)


def test_blocks_in_another_form_are_so_in_the_configuration(tmp_path: Path) -> None:
    """A run plans with the form that it stores: with any other one this device would not fit."""
    size = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 2048}
    LlamaConfig(vocab_size=64, num_attention_heads=8, **size).save_pretrained(tmp_path)
    blocks = 4 * (4 * 512**2 + 3 * 512 * 2048) * 2  # bytes of the blocks' matrices in BF16
    words = ["--batch-size", "1", "--seq-len", "8", "--disk", "0", "--budget"]
    shown = output("plan", "--model", str(tmp_path), *words, str(blocks + MEASURED.fixed))
    answer, toml = shown.split("to paste into a configuration:")
    assert answer.startswith("Train all parameters exactly")
    form = tomllib.loads(toml)["model"]["storage_dtype"]
    assert form in FORMS
    assert f"blocks in {form}" in answer
    inference = output(
        "plan", "--model", str(tmp_path), "--no-backward", *words, str(blocks + MEASURED.fixed)
    )
    assert inference.startswith("Train 0 of ")
    assert "blocks in q" in " ".join(inference.split())


def test_weights_that_are_not_in_safetensors_files_are_not_streamed(tmp_path: Path) -> None:
    """A run could not: pickled weights are loaded whole."""
    size = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 2048}
    LlamaConfig(vocab_size=64, num_attention_heads=8, **size).save_pretrained(tmp_path)
    blocks = 4 * (4 * 512**2 + 3 * 512 * 2048) * 2  # bytes of the blocks' matrices in BF16
    words = ["--model", str(tmp_path), "--batch-size", "1", "--seq-len", "8", "--json"]
    words += ["--budget", str(blocks + MEASURED.fixed)]
    assert json.loads(output("plan", *words))["chosen"]["stream"]
    (tmp_path / "pytorch_model.bin").touch()
    chosen = json.loads(output("plan", *words))["chosen"]
    assert (chosen["stream"], chosen["storage_dtype"] in FORMS) == (False, True)


def test_methods_without_directions_have_alternatives_too(small: list[str]) -> None:
    facts = json.loads(output("plan", *small, "--method", "fedavg", "--json"))
    rows = {row["name"]: row for row in facts["alternatives"]}
    assert rows["pure zeroth order"]["zo_params"] > 0
    assert rows["hybrid order (the paper)"]["bottom"] == "zeroth-order"
    assert rows["frozen bottom"]["bottom"] == "frozen"


def test_a_method_with_one_boundary_for_all_is_not_planned_device_by_device(
    small: list[str], tmp_path: Path
) -> None:
    """A run would refuse the configuration: it is refused here in the same words."""
    words = ["--method", "fedavg", "--budget", "1GiB", "--write", str(tmp_path / "fleet.toml")]
    with pytest.raises(HoflError, match="all devices at one boundary: use the strategy paper"):
        output("plan", *small, *words)
    assert not [*tmp_path.iterdir()]


def test_the_long_tables_share_one_scale_and_show_the_budget(facts: dict, small: list[str]) -> None:
    budget = facts["boundaries"][2]["peak_bytes"]
    words = ["--budget", str(budget), "--strategy", "paper", "--all"]
    lines = output("plan", *small, *words).splitlines()
    bars = [line for line in lines if "█" in line and "weights" not in line]
    assert len(bars) == len(facts["boundaries"]) + len(facts["options"])
    assert all("|" in line for line in bars)
    ends = {line.index("|") for line in bars}
    assert len(ends) == 1, "the budget is one straight line"
    assert all(len(line.rstrip()) <= 80 for line in bars)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1KiB"], r"nothing fits a device with 1\.0 KiB: the smallest plan \(bound"),
        (
            ["--budget", "1KiB", "--strategy", "paper"],
            r"nothing fits 1\.0 KiB: the smallest needs \d+\.\d KiB",
        ),
        (["--budget", "1GiB", "--read-speed", "0"], "cannot read '0' as a speed above 0"),
        (["--budget", "1GiB", "--seconds", "5"], "needs the device's speed: give gflops"),
        (["--storage-dtype", "q9"], "unknown dtype 'q9': choose one of"),
        (["--write", "x.toml"], "--write needs --budget"),
        (["--budget", "1GiB", "--write", "/no/such/x.toml"], "/no/such is not a folder"),
        (["--budget", "1GiB", "--gflops", "inf"], "gflops must be more than 0 and finite, got inf"),
        (["--budget", "much"], "cannot read 'much' as an amount of memory"),
        (["--strategy", "magic"], "unknown strategy 'magic': choose one of best, paper"),
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
