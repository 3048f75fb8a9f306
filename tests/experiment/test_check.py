"""``hofl check`` and ``hofl evaluate`` on a tiny model, against the run itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import hofl
from hofl.engines.client import LocalClient
from hofl.experiment import tiers
from hofl.experiment.build import build_simulation
from hofl.messages import RoundPlan
from hofl.models.split import SplitModel
from support.runs import own_files, quick, run_cli


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


def own_config(folder: Path, tiny_folder: Path, **custom: object) -> str:
    """A configuration over ``train`` and ``test`` in a folder."""
    common = {"template": "Message: {text}\nDepartment:", "cut": "text"}
    config = quick(
        tiny_folder, task={"name": "custom"}, fleet={"clients": 1, "cohort": 1, "boundaries": (1,)}
    )
    values = {**config.model_dump(exclude_none=True), "custom": {**common, **custom}}
    (folder / "run.toml").write_text(tomli_w.dumps(values))
    return str(folder / "run.toml")


def test_check_counts_answers_that_cannot_be_generated(tiny_folder: Path, tmp_path: Path) -> None:
    """Two of five answers have more than two words, which are tokens here; a blank line is none."""
    answers = ["my parcel is late", "late", "parcel", "my parcel is", "is"]
    file = tmp_path / "all.csv"
    file.write_text("text,say\n" + "".join(f"parcel,{one}\n" for one in answers) + "\n")
    custom = {"train": str(file), "test": str(file), "target_column": "say", "max_new_tokens": 2}
    code, output = run_cli("check", own_config(tmp_path, tiny_folder, **custom))
    assert code == 0, output
    assert "4 answers are longer than may be generated" in output  # two in each set


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_check_of_the_scalars_is_estimated_once_per_participation(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """With a clock that counts rows through blocks, the estimate is that of real participations."""
    config = quick(tiny_folder, method={"local_steps": steps}, fleet={"boundaries": [2]})
    clock = counting_rows(monkeypatch)
    found = hofl.check(config)
    experiment = build_simulation(config)
    plan = experiment.plan(experiment.start, 0, experiment.present(0)).to_bytes()
    whole = clock(lambda: experiment.client.answer(plan))
    assert found.cost.train_seconds == config.rounds * config.fleet.cohort * whole
    assert [tier.seconds for tier in found.tiers] == [whole]


def test_devices_are_timed_with_their_own_rules(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them only do inference, which is not what the method's rule is."""
    rules, answer = [], LocalClient.answer

    def seen(self: LocalClient, message: bytes) -> bytes:
        rules.append(replace(RoundPlan.from_bytes(message).rule, local_steps=2))
        return answer(self, message)

    monkeypatch.setattr(LocalClient, "answer", seen)
    fleet = {"boundaries": [], "devices": [{"memory": "1GiB", "backward": False}]}
    found = hofl.check(quick(tiny_folder, fleet=fleet))
    experiment = build_simulation(found.config)
    own = experiment.present(0).rule(0)
    assert own != experiment.method.local
    assert len(rules) > 1
    assert all(rule == own for rule in rules)


def counting_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], float]:
    """Put a clock that counts rows through blocks in place of the one that times steps."""
    rows, block = 0, SplitModel.block

    def counted(self: SplitModel, index: int, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal rows
        rows += len(hidden)
        return block(self, index, hidden, *rest)

    def clock(work: Callable[[], Any]) -> float:
        start = rows
        work()
        return float(rows - start)

    monkeypatch.setattr(SplitModel, "block", counted)
    monkeypatch.setattr(tiers, "elapsed", clock)
    return clock


def test_the_time_of_held_out_examples_is_estimated(tiny_folder: Path) -> None:
    """Without a test set nothing but held-out examples is evaluated."""
    none = hofl.check(quick(tiny_folder, evaluation={"holdout": 0.0, "test": True}))
    held = hofl.check(quick(tiny_folder, evaluation={"holdout": 0.5, "test": False}))
    assert none.cost.evaluation_seconds > 0
    assert held.cost.evaluation_seconds > 0


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
        "labels": {"yes": "delivery", "no": "billing"},
    }
    code, output = run_cli("check", own_config(tmp_path, tiny_folder, **custom))
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


def test_a_run_is_scored_with_its_own_threads_and_without_its_training_files(
    tiny_folder: Path, tmp_path: Path
) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "my parcel is late", "kind": "a"}\n' * 4)
    files = (tmp_path / "train.jsonl", tmp_path / "test.jsonl")
    fleet = {"clients": 1, "cohort": 1, "boundaries": [1]}
    result = hofl.run(own_files(tiny_folder, *files, fleet=fleet), tmp_path / "run")
    files[0].unlink()
    threads = []
    torch.set_num_threads(2)
    try:
        scores = hofl.evaluate(
            hofl.config_of(result.path),
            result.path,
            progress=lambda done, of: threads.append(torch.get_num_threads()),
        )
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}, "engine.threads of the run"
    assert scores["loss"] == pytest.approx(result.summary["final"]["loss"], rel=1e-6)


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
    path.write_text(json.dumps({"q0": "The Denver  Broncos!", "q1": "in blue paint", "q9": "x"}))
    code, output = run_cli(*words, "--json")
    assert code == 0, output
    more = json.loads(output)
    assert (more["em"], more["f1"], more["unanswered"]) == (scores["em"], scores["f1"], 1)
    assert (scores["not_asked"], more["not_asked"]) == (0, 1), "passed over, as by the official one"
    assert "1 answers to other questions passed over" in run_cli(*words)[1]
    path.write_text(json.dumps({"q9": "x"}))
    assert "answers none of the 3 questions of 'squad'" in run_cli(*words)[1]
    assert "give --task alone" in run_cli(*words, "--examples", "2")[1]
    path.write_text("[1]")
    assert "must hold one JSON object" in run_cli(*words)[1]
    path.unlink()
    reason = "No such file or directory"
    assert run_cli(*words)[1] == f"error: cannot read predictions {path}: {reason}.\n"


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
