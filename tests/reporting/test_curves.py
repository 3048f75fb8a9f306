"""``hofl curve`` against the rows of the runs it reads."""

import json
from pathlib import Path

import pytest

import hofl
from support.runs import quick, run_cli


def test_curves_hold_every_score_and_loss_of_the_runs(tiny_folder: Path, tmp_path: Path) -> None:
    """Two runs whose folders have the same name are told apart."""
    words = [str(tmp_path / "one" / "run"), str(tmp_path / "two" / "run")]
    for path, seed in zip(words, (5, 6), strict=True):
        hofl.run(quick(tiny_folder, seed=seed, evaluation={"every": 2}), path)
    code, output = run_cli("curve", *words, "--json")
    assert code == 0, output
    shown = json.loads(output)
    assert list(shown) == words
    for path, table in shown.items():
        lines = (Path(path) / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["train_loss"] for row in table] == [row["train_loss"] for row in rows]
        scores = [row["eval"]["accuracy"] if "eval" in row else None for row in rows]
        assert [row["accuracy"] for row in table] == scores
        assert scores[1] is None, "round 1 was not evaluated"
    code, output = run_cli("curve", *words, "--plot", str(tmp_path / "c.svg"))
    assert code == 0, output
    assert (tmp_path / "c.svg").read_text().count("<path") > 10
    assert [line for line in output.splitlines() if line.startswith("/")] == words


@pytest.mark.parametrize(
    ("words", "message"),
    [(["/no/run"], "is not a run"), (["/no/run", "--plot", "c.gif"], "cannot plot to 'c.gif'")],
)
def test_a_curve_of_nothing_is_one_line(words: list[str], message: str) -> None:
    code, output = run_cli("curve", *words)
    assert code == 2
    assert message in output
    assert "Traceback" not in output
