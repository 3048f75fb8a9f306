"""``hofl init``: the configuration that it writes passes ``hofl check``."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hofl.data.columns import recognise
from hofl.experiment.config import read_config
from support.runs import run_cli

MAILS = [("the parcel is late", "delivery"), ("my invoice is wrong", "billing")] * 30


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


LABELLED = [{"message": text, "topic": kind} for text, kind in MAILS]
QUESTIONS = [{"question": text, "answer": kind} for text, kind in MAILS]
DOCUMENTS = [
    {"speaker": f"person {number % 5}", "text": f"{text} {number}"}
    for number, (text, _) in enumerate(MAILS)
]


@pytest.mark.parametrize(
    ("rows", "words", "task", "custom", "clients"),
    [
        (LABELLED, ["--budget", "2GiB,1GiB"], "custom", {"label_column": "topic"}, 6),
        (QUESTIONS, [], "chat", {"prompt_column": "question", "target_column": "answer"}, 6),
        (DOCUMENTS, [], "text", {"client_column": "speaker", "text_column": None}, 5),
    ],
    ids=["labels", "chat", "documents"],
)
def test_what_is_written_passes_the_check(
    rows: list[dict[str, Any]],
    words: list[str],
    task: str,
    custom: dict[str, Any],
    clients: int,
    tiny_folder: Path,
    tmp_path: Path,
) -> None:
    data, path = written(tmp_path / "data.jsonl", rows), tmp_path / "made" / "my.toml"
    code, output = run_cli(
        "init", str(path), "--model", str(tiny_folder), "--train", str(data), *words
    )
    assert code == 0, output
    assert f"task {task}" in output
    config = read_config(str(path))
    assert (config.task.name, config.fleet.clients) == (task, clients)
    assert config.custom is not None
    assert config.custom.train == str(data), "relative in the file, to the file"
    assert {key: getattr(config.custom, key) for key in custom} == custom
    code, output = run_cli("check", str(path), "rounds=1", "engine.threads=1")
    assert code == 0, output
    assert "warning" not in output


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"instruction": "a", "input": "", "output": "b"}, {}),
        (
            {"Instruction": "a", "input": "", "Output": "b"},
            {"prompt_column": "Instruction", "input_column": "input", "target_column": "Output"},
        ),
        ({"Messages": [{"role": "user", "content": "a"}]}, {"messages_column": "Messages"}),
        (
            {"Question": "a", "ANSWER": "b"},
            {"prompt_column": "Question", "target_column": "ANSWER"},
        ),
    ],
)
def test_conversations_are_found_in_capital_letters_too(
    row: dict[str, Any], keys: dict[str, str], tmp_path: Path
) -> None:
    found = recognise(written(tmp_path / "data.jsonl", [row]))
    assert (found.task, found.keys) == ("chat", keys)


def test_labels_and_comments_are_written_for_people(tmp_path: Path) -> None:
    data, path = written(tmp_path / "data.jsonl", LABELLED), tmp_path / "my.toml"
    other = written(tmp_path / "test.jsonl", LABELLED[:4])
    code, _ = run_cli("init", str(path), "--train", str(data), "--test", str(other))
    assert code == 0
    text = path.read_text()
    values = tomllib.loads(text)
    assert values["custom"]["template"] == "Message: {message}\nTopic:"
    assert values["custom"]["labels"] == {"billing": "billing", "delivery": "delivery"}
    assert values["custom"]["train"] == "./data.jsonl"
    assert "holdout" not in values["evaluation"]
    assert "# The training data: 60 rows; labels in 'topic'." in text
    assert "labels = " in text
    assert "# value of the column -> word" in text


@pytest.mark.parametrize(
    ("rows", "words", "expected"),
    [
        ([{"a": 1, "b": 2}] * 4, [], "the columns a, b are neither conversations"),
        (LABELLED, ["--label", "kind"], "has no column 'kind': it has message, topic"),
        (LABELLED, ["--budget", "much"], "much"),
        (LABELLED, ["--task", "sst2"], "give --train FILE for own data, or --task NAME"),
        (LABELLED, ["--test", "missing.csv"], "no file missing.csv"),
    ],
)
def test_what_cannot_be_told_is_one_line_and_nothing_is_written(
    rows: list[dict[str, Any]], words: list[str], expected: str, tmp_path: Path
) -> None:
    data, path = written(tmp_path / "data.jsonl", rows), tmp_path / "my.toml"
    code, output = run_cli("init", str(path), "--train", str(data), *words)
    assert (code, output.count("\n")) == (2, 1)
    assert expected in output
    assert not path.exists()


def test_a_task_of_hofl_is_taken_and_a_file_never_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "my.toml")
    assert run_cli("init", path, "--task", "sst2", "--budget", "free")[0] == 0
    assert read_config(path).fleet.budgets == ("free",)
    code, output = run_cli("init", path, "--task", "sst2")
    assert code == 2
    assert "exists: choose another name" in output


@pytest.mark.parametrize("task", ["sst3", "chat"])
def test_a_task_that_hofl_does_not_have_is_one_line_and_nothing_is_written(
    task: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.toml"
    code, output = run_cli("init", str(path), "--task", task)
    assert (code, output.count("\n")) == (2, 1)
    assert f"unknown task '{task}': choose one of helpdesk, sst2" in output
    assert not path.exists()


def test_a_place_where_nothing_can_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    code, output = run_cli("init", str(file / "my.toml"), "--task", "sst2")
    assert (code, output.count("\n")) == (2, 1)
    assert f"cannot write {file / 'my.toml'}: {file} is not a folder." in output
