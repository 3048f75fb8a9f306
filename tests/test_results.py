"""The pages of results: what the committed rows say, with what is missing said plainly."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from free_text_page import COMPARISONS, free_text
from make_results import collected, keep, replace_if_more
from results_definitions import DEFINITIONS, FROZEN, Definition
from results_equal import at_equal, equal_table
from results_pages import HYBRID_LABEL, PAGES, state_of, verdict

import hofl
from hofl.comparing.plan import arms_of, planned
from hofl.experiment.runs import RunDirectory
from support.written_runs import ROUNDS, write_run

ROOT = Path(__file__).parents[1]
EMPTY = {"memory": {"peaks": [1.0], "pure": 1.0, "demands": [], "beside": []}}


def test_the_pages_are_what_the_committed_rows_say() -> None:
    words = [sys.executable, str(ROOT / "tools" / "make_results.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: one.name)
def test_every_definition_is_a_comparison_that_can_be_planned(definition: Any) -> None:
    config = hofl.read_config(
        str(ROOT / "docs" / "results" / definition.config), list(definition.changes)
    )
    grid = dict(item.split("=", 1) for item in definition.grid)
    values = {key: text.split(",") for key, text in grid.items()}
    comparison = planned(config, Path("c"), definition.methods, definition.seeds, values)
    assert len(comparison.cells) == len(definition.seeds) * len(arms_of(definition.methods, values))


def row(label: str, loss: tuple[float, float, float] | None) -> dict[str, Any]:
    """A row whose loss differs from the frozen control's by a mean and its interval."""
    pair = None
    if loss is not None:
        pair = dict(zip(("mean", "low", "high"), loss, strict=True))
    measures = {"loss": {"mean": 0.5, "deviation": 0.01, "seeds": 3}}
    return {
        "label": label,
        "against": {FROZEN: {"score": pair, "loss": pair}},
        "measures": measures,
    }


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ((-0.01, -0.02, -0.004), "excludes 0: the loss is less with it"),
        ((0.01, 0.004, 0.02), "excludes 0: the loss is more with it"),
        ((-0.01, -0.03, 0.01), "contains 0: these runs do not show that it earns its cost"),
        (None, "cannot be said yet"),
    ],
)
def test_what_the_zeroth_order_bottom_adds_is_said_with_its_interval(
    loss: tuple[float, float, float] | None, said: str
) -> None:
    text = verdict({"rows": [row(FROZEN, None), row(HYBRID_LABEL, loss)]}).replace("\n", " ")
    assert said in text
    if loss is not None:
        assert f"{loss[0]:+.4f} [{loss[1]:+.4f}, {loss[2]:+.4f}] of test loss" in text


def test_rows_at_equal_cost_are_read_where_the_limit_is_reached() -> None:
    """Each seed's limit is what the reference spent in that seed."""

    def run(seed: int, *points: tuple[int, int, float], state: str = "finished") -> dict[str, Any]:
        names = ("round", "uplink", "accuracy")
        curve = [dict(zip(names, p, strict=True)) for p in points]
        return {"seed": seed, "state": state, "curve": curve}

    thin = run(1, (0, 0, 0.5), (4, 10, 0.6), (8, 20, 0.7))
    more = run(2, (0, 0, 0.5), (4, 16, 0.6), (8, 32, 0.9))
    thick = run(1, (0, 0, 0.5), (4, 15, 0.8), (8, 30, 0.9))
    reference = {"label": "thin", "cells": [thin, more, run(3, (0, 0, 0.1), state="unfinished")]}
    group = {
        "rows": [
            reference,
            {"label": "thick", "cells": [thick]},
            {"label": "other seed", "cells": [run(4, (0, 0, 0.5))]},
            {"label": "none", "cells": [run(1, state="not started")]},
        ]
    }
    assert dict(at_equal(group, "uplink", reference)) == {
        "thin": "80.00 (14.14), end",
        "thick": "80.00†, round 4",
        "other seed": "-",
        "none": "-",
    }
    dear = {"label": "dear", "cells": [run(1, (8, 80, 0.7))]}
    assert dict(at_equal(group, "uplink", dear))["thin"] == "70.00, end at 25 %"


def tiers(label: str, score: float, *peaks: dict[int, int]) -> dict[str, Any]:
    """A row with the peaks of each seed."""
    cells = [
        {
            "seed": k,
            "state": "finished",
            "curve": [{"round": 1, "uplink": 1, "passes": 1, "accuracy": score}],
            "final": {"accuracy": score + 0.01 * k},
            "peaks": one,
        }
        for k, one in enumerate(peaks)
    ]
    costs = {"uplink": {"mean": 1}, "compute": {"mean": 1}}
    return {"label": label, "cells": cells, "measures": costs}


def test_memory_is_compared_device_by_device_and_leaner_ways_count() -> None:
    """Devices have 900, 800 and 700: what HO-FL took at its boundaries."""
    group = {
        "rows": [
            tiers("HO-FL", 0.6, {1: 900, 2: 790, 3: 700}, {1: 890, 2: 800, 3: 600}),
            tiers("frozen", 0.5, {1: 800, 2: 700, 3: 600}),
            tiers("exact", 0.7, {1: 950, 2: 700, 3: 600}),
            tiers("whole", 0.8, {0: 840}),
            tiers("lean", 0.85, {0: 1400}, {0: 1300}),
            tiers("pure", 0.4, {4: 500}),
        ]
    }
    leaner = {"rows": [tiers("lean", 0.84, {0: 650}), tiers("whole", 0.8, {0: 750})]}
    lines = list(equal_table(group, leaner, "HO-FL", "HO-FL"))
    found = {line.split(" | ")[0][2:]: line.split(" | ")[-1][:-2] for line in lines[2:]}
    assert found == {
        "HO-FL": "60.50 (0.71)",
        "frozen": "50.00",
        "exact": "does not fit: 2 of 3 tiers, 1.06 times the memory",
        "whole": "does not fit: 1 of 3 tiers, 1.20 times the memory",
        "lean": "84.00, blocks run again",
        "pure": "40.00",
    }


def test_without_runs_every_page_says_so() -> None:
    for name, make in PAGES.items():
        text = make(EMPTY)
        assert ("Not run yet." in text or "not run" in text) == (name != "memory.md")


def free_row(label: str, before: float, after: float) -> dict[str, Any]:
    answer = {"prompt": "Who?", "expected": "I.", "before": "You.", "after": f"We,\n\nby {label}."}
    cell = {"state": "finished", "initial": {"perplexity": math.exp(before), "loss": before}}
    cell |= {"answers": [answer]}
    cell["initial"]["token_accuracy"] = 0.25
    found = {"loss": after, "perplexity": math.exp(after), "score": 0.5}
    measures = {key: {"mean": value, "deviation": None} for key, value in found.items()}
    return {"label": label, "cells": [cell], "measures": measures}


def test_the_free_text_page_says_how_much_of_fedavgs_fall_each_method_reached() -> None:
    rows = [free_row("fedavg", 3.0, 2.0), free_row("exact", 3.0, 2.1), free_row("bad", 3.0, 3.5)]
    group = {"rows": rows, "differs": {}}
    name = COMPARISONS[0]
    facts = {"groups": [group], "made_with": {}}
    page = free_text({name: facts})
    assert "| exact | 1 | 20.09 | 8.17 | 25.00 | 50.00 | 2.1000 | - | - | - |" in page
    said = page.replace("\n", " ")
    assert "fell in the runs of all but bad. Of the fall that FedAvg reached: exact 90 %" in said
    assert "bad -50 %" in said
    assert "- **after exact:** We, / by exact." in page
    assert page.count("Not run yet.") == len(COMPARISONS) - 1
    unfinished = {"rows": rows[1:], "differs": {}}
    page = free_text({name: {**facts, "groups": [unfinished]}})
    assert "cannot be said yet" in page


def test_sample_answers_and_the_start_are_collected(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "hofl", 1, 0.7)
    assert "answers" not in row_of(tmp_path)["cells"][0]
    answers = [{"prompt": "p", "expected": "e", "before": "b", "after": "a"}]
    (tmp_path / "run" / "samples.json").write_text(json.dumps({"answers": answers}))
    cell = row_of(tmp_path)["cells"][0]
    summary = RunDirectory.open(tmp_path / "run").summary()
    assert summary is not None
    assert cell["answers"] == answers
    assert cell["initial"]["loss"] == pytest.approx(summary.initial["loss"], abs=1e-6)


def row_of(folder: Path) -> dict[str, Any]:
    (row,) = collected(DEFINITIONS[0], folder)["groups"][0]["rows"]
    return dict(row)


def test_rows_are_collected_from_run_folders_finished_or_not(tmp_path: Path) -> None:
    for method, level in (("hofl", 0.7), ("frozen-bottom", 0.6)):
        for seed in (1, 2):
            write_run(tmp_path / f"{method}-{seed}", method, seed, level)
    write_run(tmp_path / "hofl-3", "hofl", 3, rounds=ROUNDS - 1)
    definition = DEFINITIONS[0]
    facts = json.loads(json.dumps(collected(definition, tmp_path)))
    rows = {one["label"]: one for one in facts["groups"][0]["rows"]}
    assert [one["state"] for one in rows["hofl"]["cells"]] == ["finished"] * 2 + ["unfinished"]
    read = {}
    for method in rows:
        for number, one in enumerate(rows[method]["cells"][:2]):
            summary = RunDirectory.open(tmp_path / f"{method}-{number + 1}").summary()
            assert summary is not None
            read[method, number] = summary.final["loss"]
            assert one["final"]["loss"] == pytest.approx(read[method, number], abs=1e-6)
            assert one["curve"][-1]["uplink"] == summary.uplink_bytes
    pair = rows["hofl"]["against"]["frozen-bottom"]["loss"]
    apart = [read["hofl", n] - read["frozen-bottom", n] for n in (0, 1)]
    assert pair["mean"] == pytest.approx(sum(apart) / 2)
    assert pair["low"] < pair["mean"] < pair["high"]
    assert state_of({definition.name: facts}, definition) == "4 of 5 runs finished"


def test_records_of_runs_on_two_machines_add_up_to_one_table(tmp_path: Path) -> None:
    methods, seeds = ("fedavg", "hofl"), (1, 2, 3)
    definition = Definition("both", "Both", "page", "c.toml", methods, seeds)
    for machine, there in {"first": (1, 3), "second": (2,)}.items():
        for method, level in zip(methods, (0.8, 0.7), strict=True):
            for seed in there:
                rounds = ROUNDS - 1 if (method, seed) == ("hofl", 3) else ROUNDS
                run = tmp_path / machine / "cells" / f"{method}-seed-{seed}"
                write_run(run, method, seed, level, rounds=rounds, data={"dir": "/my/data"})
                (run / "adapter").mkdir()
        keep(definition, tmp_path / machine, tmp_path / "records")
    kept = {file.name for file in (tmp_path / "records").rglob("*") if file.is_file()}
    environment = {"config.toml", "environment.json", "metrics.jsonl", "summary.json"}
    assert kept == {"comparison.toml", *environment}
    given = [file.read_text() for file in (tmp_path / "records").rglob("config.toml")]
    assert all("/my/data" not in text for text in given), "folders of a machine are not kept"
    (group,) = collected(definition, tmp_path / "records")["groups"]
    states = {row["label"]: [cell["state"] for cell in row["cells"]] for row in group["rows"]}
    assert states == {"fedavg": 3 * ["finished"], "hofl": [*2 * ["finished"], "not started"]}


def test_a_file_of_more_runs_is_not_replaced(tmp_path: Path) -> None:
    def facts(*states: str) -> dict[str, Any]:
        return {"groups": [{"rows": [{"cells": [{"state": state} for state in states]}]}]}

    file, more, fewer = tmp_path / "a.json", facts("finished", "finished"), facts("finished")
    for given, expected in ((fewer, fewer), (more, more), (fewer, more)):
        replace_if_more(file, given)
        assert json.loads(file.read_text()) == expected
