"""How much of the test set is scored: ``evaluation.examples`` and ``evaluation.curve_examples``."""

from pathlib import Path

import pytest

import hofl
from hofl.experiment.runs import RunDirectory
from support.runs import quick


def test_a_run_is_scored_on_the_examples_that_are_to_be_used(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """As ``hofl evaluate --examples`` scores the same adapter: always the same ones."""
    evaluation = {"examples": 20, "curve_examples": 5, "every": 1}
    run = hofl.run(quick(tiny_folder, rounds=2, evaluation=evaluation), tmp_path / "run").path
    records = RunDirectory.open(run).metrics()
    assert [record.scores["examples"] for record in records if record.scores] == [5, 5, 20]
    scores = hofl.evaluate(hofl.config_of(run), run, examples=20)
    last = records[-1].scores
    assert last is not None
    assert (scores["accuracy"], scores["loss"]) == (
        last["accuracy"],
        pytest.approx(last["loss"], rel=1e-5),
    )


def test_the_limit_holds_before_the_end_too(tiny_folder: Path, tmp_path: Path) -> None:
    config = quick(tiny_folder, rounds=1, evaluation={"examples": 7, "curve_examples": 50})
    records = RunDirectory.open(hofl.run(config, tmp_path / "run").path).metrics()
    assert [record.scores["examples"] for record in records if record.scores] == [7, 7]
