"""The share of signal in a cohort's updates, against all pairs and against known moments."""

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hofl
from hofl.core.layout import Layout
from hofl.experiment.build import build_simulation
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.runs import RunDirectory
from hofl.rules import Part
from hofl.server.signal import BottomSignal
from support.runs import quick

LAYOUT = Layout(("a", "b", "c"), ((2,), (3,), (4,)), (0, 1, 2), 3)


def contribution(delta: np.ndarray, boundary: int, rule: str = "zeroth-order") -> Any:
    plan = SimpleNamespace(boundary=boundary, rule=SimpleNamespace(bottom=Part(rule)))
    return SimpleNamespace(plan=plan, delta=torch.from_numpy(delta.astype(np.float32)))


def shares(*contributions: Any) -> dict[str, float]:
    signal = BottomSignal(LAYOUT)
    for one in contributions:
        signal.add(one)
    return signal.shares()


def by_pairs(layout: Layout, contributions: list[Any]) -> float:
    """Mean product of pairs over mean square, block by block where there is a pair."""
    products = squares = 0.0
    for block in range(layout.num_blocks):
        rows = [c.delta for c in contributions if c.plan.boundary > block]
        rows = [row[layout.block_slice(block)].double().numpy() for row in rows]
        if len(rows) > 1:
            products += np.mean([x @ y for x, y in permutations(rows, 2)])
            squares += np.mean([x @ x for x in rows])
    return float(products / squares)


def test_the_share_is_the_mean_product_of_pairs_over_the_mean_square() -> None:
    deltas = np.random.default_rng(0).normal(size=(4, 9))
    cohort = list(map(contribution, deltas, (1, 2, 2, 3)))
    assert shares(*cohort) == {"zeroth-order": pytest.approx(by_pairs(LAYOUT, cohort))}


def test_equal_updates_are_all_signal_and_noise_is_none_on_average() -> None:
    same = contribution(np.arange(9.0), 3)
    assert shares(same, same, same)["zeroth-order"] == pytest.approx(1.0)
    rng = np.random.default_rng(1)
    noise = [
        shares(*(contribution(row, 2) for row in rng.normal(size=(3, 9))))["zeroth-order"]
        for _ in range(600)
    ]
    assert abs(np.mean(noise)) < 4 * np.std(noise) / 600**0.5


def test_rules_are_kept_apart_and_what_does_not_move_says_nothing() -> None:
    still, moved = np.zeros(9), np.ones(9)
    by_rule = shares(
        contribution(moved, 3, "recompute"),
        contribution(moved, 2, "recompute"),
        contribution(moved, 1),
        contribution(still, 3, "frozen"),
        contribution(still, 3, "frozen"),
    )
    assert by_rule == {"recompute": pytest.approx(1.0)}, "one zeroth-order client has no pair"
    assert shares(contribution(moved, 0), contribution(moved, 0)) == {}


def test_a_run_records_it_round_by_round_and_in_its_summary(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    add = BottomSignal.add
    monkeypatch.setattr(BottomSignal, "add", lambda self, one: seen.append(one) or add(self, one))
    for method, rule in {"hofl": "zeroth-order", "recompute": "recompute"}.items():
        seen.clear()
        config = quick(tiny_folder, rounds=2, method={"name": method, "policy": "uniform"})
        run = hofl.run(config, tmp_path / method)
        layout = build_simulation(config).layout
        expected = [by_pairs(layout, seen[:3]), by_pairs(layout, seen[3:])]
        records = RunDirectory(run.path).metrics()
        assert [r.bottom_signal[rule] for r in records[1:]] == pytest.approx(expected, rel=1e-4)
        assert run.summary["bottom_signal"] == {rule: pytest.approx(np.mean(expected), rel=1e-4)}
        assert RunSummary.from_json(run.summary) == run.record


def test_files_say_nothing_where_there_is_no_bottom_to_train(
    tiny_folder: Path, tmp_path: Path
) -> None:
    run = hofl.run(quick(tiny_folder, rounds=1, method={"name": "fedavg"}), tmp_path / "run")
    assert "bottom_signal" not in run.summary
    assert "bottom_signal" not in RoundRecord(round=1).to_json()
    record = RoundRecord(round=1, bottom_signal={"recompute": 0.5})
    assert RoundRecord.from_json(record.to_json()) == record
