"""``hofl data``: counts, clients, prompts, pictures, and one line per mistake."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hofl
from hofl.cli.commands import app
from support.datafiles import write_benchmarks, write_jsonl

WIDE = {"COLUMNS": "200"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOFL_DATA", str(write_benchmarks(tmp_path / "data")))


def output(words: str) -> str:
    result = CliRunner(env=WIDE).invoke(app, ["data", *words.split()])
    assert result.exit_code == 0, result.output
    return result.output


def facts(words: str) -> dict:
    return json.loads(output(f"{words} --json"))


def test_counts_by_split_label_and_client() -> None:
    shown = facts("helpdesk --clients 8")
    assert shown["splits"]["train"]["classes"] == [120] * 4
    assert shown["splits"]["test"]["examples"] == 200
    assert len(shown["clients"]) == 8
    assert [sum(column) for column in zip(*shown["clients"], strict=True)] == [120] * 4
    assert shown["repeats"] == 0
    text = output("helpdesk --clients 8")
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in rows[0]] == ["train", "480", *["120"] * 4, "0", "0"]
    assert [int(cell) for cell in rows[2]][1:-1] == shown["clients"][0]


def test_clients_are_skewed_as_asked_for() -> None:
    words = "helpdesk --partition dirichlet --alpha 0.01 --clients 4 --per-client 200"
    shown = facts(words)
    assert [sum(row) for row in shown["clients"]] == [200] * 4
    assert sum(max(row) for row in shown["clients"]) > 700, "nearly one class each"
    beyond = [max(0, sum(column) - 120) for column in zip(*shown["clients"], strict=True)]
    assert shown["repeats"] == sum(beyond) > 0
    assert facts(f"{words} --seed 43")["clients"] != shown["clients"]


def test_repeats_and_shared_examples_are_counted(tmp_path: Path) -> None:
    row = {"sentence": "again ", "label": 1}
    other = {"sentence": "once ", "label": 0}
    write_jsonl(tmp_path / "own" / "sst2" / "train.jsonl", [row, other, row, row])
    write_jsonl(tmp_path / "own" / "sst2" / "validation.jsonl", [row, row])
    splits = facts(f"sst2 --clients 2 --dir {tmp_path / 'own'}")["splits"]
    assert (splits["train"]["repeats"], splits["test"]["repeats"]) == (2, 1)
    assert splits["train"]["shared"] == splits["test"]["shared"] == 1


def test_prompts_are_shown_with_their_answers() -> None:
    assert "Sentiment: positive" in output("sst2 --clients 1")
    assert "dull , and {very} long It was terrible" in output("sst2 --clients 1 --prompt it-was")
    assert "Answer: right 0" in output("sciq --clients 1 --prompt cloze")
    assert "Answer: 1993" in output("squad --clients 1")


def test_a_note_about_the_files_is_printed() -> None:
    text = output("sst2 --clients 1")
    assert "note: " in text
    assert "train.jsonl.gz holds 3 of 67,349 examples" in text


@pytest.mark.parametrize("name", ["clients.html", "clients.png", "clients.svg"])
def test_a_picture_is_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    output(f"helpdesk --partition label-shards --clients 5 --plot {path}")
    content = path.read_bytes()
    if path.suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"helpdesk" in content
        assert b"delivery" in content


def test_large_fleets_are_not_listed() -> None:
    text = output("helpdesk --clients 400 --partition quantity")
    assert "400 clients of 1 to" in text
    assert len(text.splitlines()) < 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("poetry", "unknown task 'poetry': choose one of helpdesk, sst2, boolq, sciq"),
        ("helpdesk --partition zipf", "unknown partition 'zipf'"),
        ("helpdesk --prompt other", "has no prompt 'other': choose one of department"),
        ("helpdesk --alpha 1", "'iid' does not take alpha"),
        ("helpdesk --clients 481", "481 clients cannot share 480 examples"),
        ("squad --partition dirichlet --clients 1", "this task has no classes"),
        ("helpdesk --plot out.pdf", "cannot plot to 'out.pdf': end it in .html, .png, .svg"),
        ("sst2 --dir nowhere", "sst2 has no train.jsonl"),
    ],
)
def test_a_mistake_is_one_clear_error(words: str, message: str) -> None:
    error = CliRunner().invoke(app, ["data", *words.split()]).exception
    assert isinstance(error, hofl.HoflError)
    assert message in str(error)
    assert "\n" not in str(error)
