"""A run that is extended ends as one that was longer from the start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.checkpoint import load_state
from hofl.experiment.runs import RunDirectory
from support.runs import adapter_bytes, quick, run_cli, stop_at

MEASURED = {"seconds", "eval_seconds", "sha256", "peak_bytes", "peak_by_boundary", "uplink_bytes"}
"""By a clock, or of memory: once per process, and uploads state it in a header of some digits."""
LINEAR = {"policy": {"beta": 0.0, "beta_schedule": "linear", "beta_end": 0.5}}


def rows(run: Path) -> list[dict[str, Any]]:
    """Every round as it was recorded, without what was measured."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]


def files(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def same_results(extended: Path, long: Path) -> None:
    assert adapter_bytes(extended) == adapter_bytes(long)
    states = [load_state(RunDirectory(run)) for run in (extended, long)]
    first, second = (state for state in states if state is not None)
    assert first.round == second.round
    assert torch.equal(first.w, second.w)
    assert rows(extended) == rows(long)
    summaries = [RunDirectory(run).finished() for run in (extended, long)]
    told, expected = (summary.to_json() for summary in summaries if summary is not None)
    unequal = {key for key in told if told[key] != expected[key]}
    assert unequal <= MEASURED


def test_an_extended_run_has_the_bits_and_records_of_a_long_one(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Round 2 is the short run's end, scored on all examples; in the long run on 20."""
    scored = {"every": 2, "curve_examples": 20}
    long = hofl.run(quick(tiny_folder, rounds=3, evaluation=scored), tmp_path / "long")
    short = hofl.run(quick(tiny_folder, rounds=2, evaluation=scored), tmp_path / "short")
    assert short.summary["final"]["examples"] == 200
    code, output = run_cli("run", "--resume", str(short.path), "rounds=3")
    assert code == 0, output
    same_results(short.path, long.path)
    assert RunDirectory(short.path).config().rounds == 3
    told = run_cli("audit", str(short.path))[1]
    assert "extended: round 2, rounds 3" in told


def test_a_stopped_run_can_be_extended_and_a_kill_in_between_loses_nothing(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the long run does not score round 2 at all."""
    long = hofl.run(quick(tiny_folder, rounds=3), tmp_path / "long")
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        hofl.run(quick(tiny_folder, rounds=2), stopped, stop_at(1))
    summary = hofl.resume(stopped).summary
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_config", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            hofl.resume(stopped, rounds=3)
    again = hofl.resume(stopped).summary
    assert again["final"] == summary["final"]
    with pytest.raises(KeyboardInterrupt):
        hofl.resume(stopped, stop_at_start, rounds=3)
    hofl.resume(stopped, rounds=3)  # it has them already, and is resumed by the same words
    same_results(stopped, long.path)


def stop_at_start(event: str, facts: Mapping[str, Any]) -> None:
    """Stop before the first round."""
    if event == "start":
        raise KeyboardInterrupt


def test_what_cannot_be_extended_exactly_is_one_line_and_stays_as_it_was(
    tiny_folder: Path, tmp_path: Path
) -> None:
    run = hofl.run(quick(tiny_folder, rounds=2, method=LINEAR), tmp_path / "run").path
    before = files(run)
    for words, expected in (
        (["rounds=4"], "dimension-aware, beta 0.0, beta_schedule linear, beta_end 0.5"),
        (["rounds=1"], "has 2 rounds: give more"),
        (["seed=4"], "no change of it but rounds=N"),
        (["rounds=4", "--out", str(tmp_path / "x")], "give no --out"),
    ):
        code, output = run_cli("run", "--resume", str(run), *words)
        assert code == 2
        assert output.count("\n") == 1
        assert expected in output
    assert files(run) == before
    assert run_cli("run", "--resume", str(run), "rounds=2")[0] == 0
    with pytest.raises(HoflError, match="other clients from round 2 on"):
        hofl.resume(run, rounds=4)
