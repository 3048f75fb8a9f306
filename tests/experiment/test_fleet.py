"""Boundaries from budgets, at the start of a run and later."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hofl
from hofl.cli.display import planned_line
from hofl.core.errors import HoflError
from hofl.core.sizes import parse_bytes, show_bytes
from hofl.data.task import FreeText
from hofl.experiment.build import Experiment, build_simulation
from hofl.experiment.fleet import FleetPlan
from hofl.memory.device import Device
from hofl.memory.workload import heaviest_workload
from hofl.methods import METHODS
from support.number_texts import number_set
from support.runs import adapter_bytes, own_files, quick


def test_one_cut_for_all_is_at_the_most_constrained_device_and_is_looked_for_once(
    tiny_folder: Path,
) -> None:
    """Plans and draws of a fleet of N devices must not look at it N times."""
    seen = []

    def counted(allowed: np.ndarray, num_blocks: int) -> np.ndarray:
        seen.append(sorted(allowed.tolist()))
        return METHODS["ho-sfl"].boundary(allowed, num_blocks)

    built = build_simulation(quick(tiny_folder, fleet={"boundaries": [0, 1, 3]}))
    experiment = replace(built, method=replace(built.method, boundary=counted))
    for t in range(3):
        present = experiment.present(t)
        assert len(experiment.cohort(t, present)) == 3
        plans = [experiment.plan(experiment.start, i, present) for i in range(6)]
        assert [plan.boundary for plan in plans] == [3] * 6
    assert seen == [[0, 0, 1, 1, 3, 3]]


@pytest.mark.parametrize(
    ("text", "value"),
    [("12GiB", 12 * 2**30), ("1.5 MiB", 3 * 2**19), ("2GB", 2 * 10**9), ("4096", 4096)],
)
def test_amounts_of_memory_are_read(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "12 bananas", "0", "1e9"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(HoflError, match="as an amount of memory"):
        parse_bytes(text)


def test_free_memory_is_what_the_tightest_limit_leaves() -> None:
    """A process with a limit of its own sees what that leaves; others what the system has."""
    code = """
import resource, sys
from hofl.memory.device import usable_bytes, budget_bytes
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) * 1024
before = usable_bytes()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
after = usable_bytes()
print(before > 2**26, 0 < after <= 2**26, after > 2**25, budget_bytes("4GiB") == 2**32)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_devices_follow_their_changes() -> None:
    a, b, c = Device(1), Device(2), Device(3)
    plan = FleetPlan((a, a), ((2, 0, b), (5, 0, c), (5, 1, b)))
    seen = [[device.boundary for device in plan.at(t)] for t in range(7)]
    assert seen == [[1, 1], [1, 1], [2, 1], [2, 1], [2, 1], [3, 2], [3, 2]]


def test_the_heaviest_step_has_room_for_the_longest_text_and_the_longest_answer() -> None:
    """Tokens counted by hand: the answers stand with other texts than the longest."""
    texts, golds = [(5,) * 20, (6,) * 3, (7,) * 4], [("8",), ("9 10 11 12 13",), ("8 9",)]
    train = number_set(texts, FreeText(8), golds=golds)
    work = heaviest_workload(train, METHODS["hofl"].local, batch_size=3, smallest_shard=3)
    assert work.batch_size * work.answer_tokens >= len(train.batch(range(3)).slots)
    # 5 words and what ends an answer; 20 words, the last of the prompt, and the word read back,
    # which may come at the end of one pass and at the start of the next.
    assert work.answer_tokens == 6
    assert work.examples == ((22,), (22,), (9,))


def planned(folder: Path, **fleet: Any) -> Experiment:
    changes = {"boundaries": [], "strategy": "paper", **fleet}
    return build_simulation(quick(folder, fleet=changes))


@pytest.fixture(scope="module")
def budgets(tiny_folder: Path) -> dict[int, str]:
    """A budget that is just enough for each boundary of the tiny model."""
    found = planned(tiny_folder, budgets=["1GiB"]).memory_plan["boundaries"]
    return {row["boundary"]: str(row["peak_bytes"]) for row in found}


def test_budgets_become_the_boundaries_that_just_fit(
    tiny_folder: Path, budgets: dict[int, str]
) -> None:
    experiment = planned(tiny_folder, budgets=[budgets[0], budgets[2], budgets[1]])
    tiers = sorted(experiment.boundaries())
    assert tiers == [0, 0, 1, 1, 2, 2]
    written = experiment.config.fleet
    assert [int(b) for b in written.budgets] == [int(budgets[b]) for b in experiment.boundaries()]
    again = build_simulation(
        experiment.config
    )  # as a resume or a worker does: nothing is planned anew
    assert again.boundaries() == experiment.boundaries()
    assert again.memory_plan == {}
    one_less = str(int(budgets[1]) - 1)
    assert planned(tiny_folder, budgets=[one_less]).boundaries() == (2,) * 6


def test_measured_peaks_keep_within_the_budgets(
    tiny_folder: Path, budgets: dict[int, str], tmp_path: Path
) -> None:
    fleet = {"boundaries": [], "budgets": [budgets[0], budgets[2]], "strategy": "paper"}
    config = quick(tiny_folder, fleet=fleet)
    result = hofl.run(config, tmp_path / "run")
    for boundary, peak in result.summary["peak_by_boundary"].items():
        assert peak <= int(budgets[int(boundary)])
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert {row["boundary"] for row in plan["chosen"].values()} == {0, 2}


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [
        ("paper", [{"memory": "1GiB"}]),
        ("best", [{"memory": "1GiB"}, {"memory": "1GiB", "uplink": "1MiB"}]),
    ],
)
def test_a_plan_says_what_padded_texts_would_have_needed(
    strategy: str, devices: list[dict[str, str]], tiny_folder: Path, tmp_path: Path
) -> None:
    """One text of 40 words, the others of 5: padded, each of a batch is as long as the first.

    Oracle: the same plan for texts that all have 40 words.
    """
    rows = [{"text": "refund " * (5 if i else 40), "kind": "ab"[i % 2]} for i in range(24)]
    long = [{**row, "text": "refund " * 40} for row in rows]
    files = [tmp_path / "mixed.jsonl", tmp_path / "long.jsonl"]
    for file, lines in zip(files, (rows, long), strict=True):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fleet = {"boundaries": [], "devices": devices, "strategy": strategy, "clients": 2, "cohort": 2}
    found, padded = (
        build_simulation(own_files(tiny_folder, file, file, fleet=fleet)).memory_plan
        for file in files
    )
    assert found["tokens"] < padded["tokens"] == found["padded_tokens"]
    assert list(found["chosen"]) == ["1GiB", "1GiB, uplink 1MiB"][: len(devices)]
    for key, chosen in found["chosen"].items():
        wanted = padded["chosen"][key]
        assert chosen["padded"] == wanted["padded"]
        assert chosen["padded"]["peak_bytes"] == wanted["peak_bytes"] > chosen["peak_bytes"]
        shown = planned_line(key, chosen)
        assert f"(with padded texts: {wanted['plan']}, peak " in shown
        tight = str(chosen["peak_bytes"] + chosen.get("headroom_bytes", 0))
    small = {**fleet, "devices": [{"memory": tight}]}
    (chosen,) = (
        build_simulation(own_files(tiny_folder, files[0], files[0], fleet=small))
        .memory_plan["chosen"]
        .values()
    )
    assert (chosen["boundary"], chosen["micro_tokens"]) == (0, 0)
    assert chosen["padded"]["plan"] != chosen["plan"]
    assert planned_line("x", {**chosen, "padded": None}).endswith("texts: nothing would fit)")


def test_a_budget_for_nothing_is_one_line(tiny_folder: Path) -> None:
    with pytest.raises(HoflError, match=r"nothing fits 1.0 KiB: the smallest needs .*boundary 3"):
        planned(tiny_folder, budgets=["1KiB"])
    with pytest.raises(HoflError, match="not both"):
        build_simulation(quick(tiny_folder, fleet={"budgets": ["1GiB"]}))
    with pytest.raises(HoflError, match=r"list them in fleet\.budgets"):
        build_simulation(quick(tiny_folder, fleet={"memory_trace": "x.csv"}))


def traced(folder: Path, budgets: dict[int, str], trace: Path) -> hofl.ExperimentConfig:
    lines = ["round,client,budget", f"2,0,{budgets[3]}", f"3,0,{budgets[1]}", f"2,4,{budgets[0]}"]
    trace.write_text("\n".join(lines) + "\n")
    return quick(
        folder,
        fleet={
            "boundaries": [],
            "budgets": [budgets[2]],
            "strategy": "paper",
            "cohort": 6,
            "memory_trace": str(trace),
        },
    )


def test_a_trace_moves_boundaries_and_the_sampler_follows(
    tiny_folder: Path, budgets: dict[int, str], tmp_path: Path
) -> None:
    experiment = build_simulation(traced(tiny_folder, budgets, tmp_path / "trace.csv"))
    rounds = [experiment.boundaries(t) for t in range(3)]
    assert rounds == [(2, 2, 2, 2, 2, 2), (3, 2, 2, 2, 0, 2), (1, 2, 2, 2, 0, 2)]
    states = [replace(experiment.start, round=t) for t in range(3)]
    plans = [experiment.plan(s, 0, experiment.present(s.round)) for s in states]
    assert [plan.boundary for plan in plans] == [2, 3, 1]
    cuts = [experiment.layout.cut(b) for b in rounds[1]]
    assert np.array_equal(
        experiment.scores(experiment.present(1)) * experiment.method.local.q, cuts
    )


def test_a_run_with_a_trace_resumes_to_the_same_bits(
    tiny_folder: Path, budgets: dict[int, str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    config = traced(tiny_folder, budgets, trace)
    hofl.run(config, tmp_path / "whole")

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hofl.run(config, tmp_path / "halves", stop)
    trace.unlink()  # the run has written down what it needs
    hofl.resume(tmp_path / "halves")
    assert adapter_bytes(tmp_path / "halves") == adapter_bytes(tmp_path / "whole")
    rows = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    met = [set(json.loads(row)["peak_by_boundary"]) for row in rows]
    assert met == [set(), {"2"}, {"0", "2", "3"}, {"0", "1", "2"}]


@pytest.mark.parametrize(
    "text",
    ["round,client\n1,0\n", "round,client,budget\n0,0,1GiB\n", "round,client,budget\n1,x,1\n"],
)
def test_a_bad_trace_is_one_line(text: str, tiny_folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(HoflError, match="line 2: expected a round from 1"):
        planned(tiny_folder, budgets=["1GiB"], memory_trace=str(trace))


def test_amounts_are_shown_fine_enough_to_compare() -> None:
    assert [show_bytes(x) for x in (12, 2048, 3.5 * 2**20, 9.173 * 2**30)] == [
        "12 B",
        "2.0 KiB",
        "3.5 MiB",
        "9.17 GiB",
    ]


def test_what_is_free_has_two_names_and_is_recorded_as_an_amount(tiny_folder: Path) -> None:
    fleet = planned(tiny_folder, budgets=["auto", "free"]).config.fleet
    assert all(int(budget) > 2**20 for budget in fleet.budgets)
