"""``hofl check`` and ``hofl evaluate`` on a tiny model, against the run that they foretell."""

import json
from pathlib import Path

import pytest
import tomli_w

import hofl
from runs import quick, run_cli


def written(config: hofl.ExperimentConfig, path: Path) -> str:
    path.write_text(tomli_w.dumps(config.model_dump(exclude_none=True)))
    return str(path)


def test_check_shows_counts_prompts_and_cost_and_writes_nothing(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = written(quick(tiny_folder), tmp_path / "run.toml")
    code, output = run_cli("check", config)
    assert code == 0, output
    assert "480" in output
    assert "120 / 120 / 120 / 120" in output
    assert "Department :" in output, "as the tokenizer gives it back"
    assert "6 clients with 80 to 80 training examples" in output
    assert "3 rounds x 3 clients x 2 steps" in output
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_check_counts_the_texts_that_are_cut(tiny_folder: Path, tmp_path: Path) -> None:
    config = written(quick(tiny_folder, task={"max_length": 12}), tmp_path / "run.toml")
    code, output = run_cli("check", config)
    assert code == 0, output
    assert "lose their end" in output


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ('{"text": "a b", "label": "maybe"}', "line 2: unknown label 'maybe'"),
        ('{"text": " ", "label": "yes"}', "line 2"),
        ('{"text": "a b", "label": "yes"', "line 2"),
    ],
)
def test_check_refuses_bad_own_data_with_its_line(
    tiny_folder: Path, tmp_path: Path, label: str, message: str
) -> None:
    good = '{"text": "my parcel is late", "label": "yes"}'
    (tmp_path / "train.jsonl").write_text(f"{good}\n{label}\n")
    (tmp_path / "test.jsonl").write_text(f"{good}\n")
    custom = {
        "train": str(tmp_path / "train.jsonl"),
        "test": str(tmp_path / "test.jsonl"),
        "template": "Message: {text}\nDepartment:",
        "cut": "text",
        "labels": {"yes": "delivery", "no": "billing"},
    }
    config = quick(tiny_folder, task={"name": "custom"}, fleet={"clients": 1, "cohort": 1})
    values = {**config.model_dump(exclude_none=True), "custom": custom}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    code, output = run_cli("check", str(tmp_path / "run.toml"))
    assert code == 2
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output


def test_evaluate_gives_the_scores_that_a_run_begins_and_ends_with(
    tiny_folder: Path, tmp_path: Path
) -> None:
    result = hofl.run(quick(tiny_folder), tmp_path / "run")
    code, output = run_cli("evaluate", "--run", str(result.path), "--json")
    assert code == 0, output
    scores = json.loads(output)
    assert scores["accuracy"] == result.summary["final"]["accuracy"]
    assert scores["loss"] == pytest.approx(result.summary["final"]["loss"], rel=1e-6)
    words = ["--model", str(tiny_folder), "--task", "helpdesk", "--max-length", "48", "--json"]
    code, output = run_cli("evaluate", *words)
    assert code == 0, output
    assert json.loads(output)["accuracy"] == result.summary["initial"]["accuracy"]
    code, output = run_cli("evaluate", *words, "--examples", "50")
    assert json.loads(output)["examples"] == 50


def test_predictions_in_squads_form_are_scored_without_a_model(
    squad_folder: Path, tmp_path: Path
) -> None:
    """Two of the three questions are answered, one rightly; the third counts as wrong."""
    path = tmp_path / "predictions.json"
    words = ["evaluate", "--task", "squad", "--dir", str(squad_folder), "--predictions", str(path)]
    path.write_text(json.dumps({"q0": "The Denver  Broncos!", "q1": "in blue paint"}))
    code, output = run_cli(*words, "--json")
    assert code == 0, output
    scores = json.loads(output)
    assert scores["em"] == pytest.approx(1 / 3)
    assert scores["f1"] == pytest.approx((1 + 2 * 1 / (3 + 1)) / 3)
    assert scores["unanswered"] == 1
    path.write_text(json.dumps({"q9": "x"}))
    assert "answers 'q9', which 'squad' does not ask" in run_cli(*words)[1]
    path.write_text("[1]")
    assert "must hold one JSON object" in run_cli(*words)[1]


@pytest.fixture
def squad_folder(tmp_path: Path) -> Path:
    def line(number: int, *golds: str) -> str:
        answers = [{"text": gold, "answer_start": 0} for gold in golds]
        fields = {"id": f"q{number}", "title": "T", "context": "C c", "question": "Q q"}
        return json.dumps({**fields, "answers": answers}) + "\n"

    folder = tmp_path / "data" / "squad"
    folder.mkdir(parents=True)
    lines = line(0, "Denver Broncos", "Broncos") + line(1, "blue") + line(2, "green")
    (folder / "validation.jsonl").write_text(lines)
    (folder / "train.jsonl").write_text(line(0, "x"))
    return tmp_path / "data"
