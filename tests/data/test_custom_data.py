"""The user's own files: three formats, labels or free text, clients by file or by column."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.data.partition import Pool, split
from hofl.data.task import FreeText, LabelWords, Task
from hofl.data.tasks.custom import load_custom
from support.datafiles import write_jsonl

ROWS: list[dict[str, Any]] = [
    {"subject": "Bill", "body": 'I paid "twice", why?', "kind": "money", "user": "u10"},
    {"subject": "Box", "body": "It is\nnot here.", "kind": "post", "user": "u2"},
    {"subject": "Émile", "body": "Where is {my} parcel, 包裹?", "kind": "post", "user": "u10"},
]
TEMPLATE = "{subject}: {body}\nTopic:"
LABELS = {"money": "billing", "post": "delivery"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8-sig") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        write_jsonl(path, rows)
    return path


def load(path: Any, **changes: Any) -> Task:
    options: dict[str, Any] = {
        "train": path,
        "test": path,
        "template": TEMPLATE,
        "cut": "body",
        "labels": LABELS,
        "label_column": "kind",
    }
    return load_custom(**{**options, **changes})


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_rows_that_were_written(suffix: str, tmp_path: Path) -> None:
    task = load(write(tmp_path / f"mail{suffix}", ROWS))
    assert [dict(one.fields) for one in task.train] == [
        {"subject": row["subject"], "body": row["body"]} for row in ROWS
    ]
    assert [one.label for one in task.train] == [0, 1, 1]
    assert task.prompt().answer == LabelWords(("billing", "delivery"))
    assert task.classes == ("billing", "delivery")
    assert task.clients is None
    assert task.prompt().render(task.train[2].fields) == (
        "Émile: Where is {my} parcel, 包裹?\nTopic:"
    )


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_separates_the_columns_of_a_csv_file_is_found_and_said(
    separator: str, tmp_path: Path
) -> None:
    """The other marks stand in texts and in a column's name; the rows are those of the module."""
    path = tmp_path / "mail.csv"
    rows = [{**row, "body": row["body"] + ",;|", "a,b;c": "x"} for row in ROWS]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    task = load(path)
    assert [dict(one.fields) for one in task.train] == [
        {"subject": row["subject"], "body": row["body"]} for row in rows
    ]
    said = f"columns are separated by {separator!r} in mail.csv"
    assert task.note == ("" if separator == "," else said)
    path.write_text(path.read_text() + f"only{separator}three{separator}cells\n")
    with pytest.raises(
        HoflError, match=r"line 6: 3 values for 5 columns.*holds " + re.escape(repr(separator))
    ):
        load(path)


def test_training_files_can_be_left_unread(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", ROWS)
    task = load(None, test=path, client_column="user")
    assert (len(task.train), len(task.test), task.clients) == (0, 3, None)


def test_free_text_targets_may_be_one_or_several(tmp_path: Path) -> None:
    rows = [{"q": "One?", "a": "1"}, {"q": "Two?", "a": ["2", "two"]}, {"q": "Three?", "a": 3}]
    task = load(
        write(tmp_path / "qa.jsonl", rows),
        template="{q}\nA:",
        cut="q",
        labels=None,
        target_column="a",
        max_new_tokens=9,
    )
    assert [one.golds for one in task.train] == [("1",), ("2", "two"), ("3",)]
    assert task.prompt().answer == FreeText(9)
    assert task.classes == ()


def test_labels_may_be_numbers_and_truth_values(tmp_path: Path) -> None:
    rows = [{"t": "x", "label": 0}, {"t": "y", "label": True}, {"t": "z", "label": "0"}]
    path = write(tmp_path / "n.jsonl", rows)
    words = {"true": "yes", "0": "no"}
    task = load(path, template="{t}:", cut="t", labels=words, label_column="label")
    assert [one.label for one in task.train] == [1, 0, 1]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_client_column_keeps_examples_with_their_client(suffix: str, tmp_path: Path) -> None:
    task = load(write(tmp_path / f"mail{suffix}", ROWS), client_column="user")
    assert np.asarray(task.clients).tolist() == [0, 1, 0], "u10 stands before u2 as text"
    shards = split("natural", Pool.of(task), 2, seed=0)
    assert [shard.tolist() for shard in shards] == [[0, 2], [1]]


def test_a_missing_number_is_an_empty_cell_not_the_word_nan(tmp_path: Path) -> None:
    rows = [{"q": 1.5, "kind": "b"}, {"q": float("nan"), "kind": "b"}]
    path = write(tmp_path / "x.parquet", [{**row, "body": "y"} for row in rows])
    options = {"template": "{q} {body}\nTopic:", "labels": {"b": "billing", "d": "delivery"}}
    with pytest.raises(HoflError, match=r"x\.parquet row 2: field 'q' is empty"):
        load(path, **options)
    task = load(path, optional=("q",), **options)
    assert [one.fields["q"] for one in task.train] == ["1.5", ""]


def test_client_numbers_stay_what_they_are(tmp_path: Path) -> None:
    owners = [10, 2, 0, 1, 9, 3, 4, 5, 6, 7, 8]
    rows = [{**ROWS[0], "user": owner} for owner in owners]
    task = load(write(tmp_path / "mail.jsonl", rows), client_column="user")
    assert np.asarray(task.clients).tolist() == owners


def test_one_file_per_client_from_a_folder_or_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    for number, rows in ((10, ROWS[:1]), (2, ROWS[1:]), (1, ROWS)):
        write(folder / f"c{number}.csv", rows)
    (folder / ".hidden").write_text("not data")
    test = write(tmp_path / "test.csv", ROWS)
    task = load(folder, test=test)
    assert np.asarray(task.clients).tolist() == [0, 0, 0, 1, 1, 2], "files 1, 2, 10"
    shards = split("natural", Pool.of(task), 3, seed=0)
    assert [len(shard) for shard in shards] == [3, 2, 1]
    listed = load([folder / "c10.csv", folder / "c1.csv"], test=test)
    assert np.asarray(listed.clients).tolist() == [0, 1, 1, 1]
    with pytest.raises(HoflError, match="belong to 3 clients, and the fleet has 4"):
        split("natural", Pool.of(task), 4, seed=0)


def test_a_column_may_be_declared_optional(tmp_path: Path) -> None:
    path = write(tmp_path / "mail.csv", [{**ROWS[0], "subject": ""}])
    with pytest.raises(HoflError, match=r"mail\.csv line 2: field 'subject' is empty"):
        load(path)
    task = load(path, template="{subject}\n{body}:", optional=("subject",))
    assert task.prompt().render(task.train[0].fields) == 'I paid "twice", why?:'


def test_other_words_for_the_same_file_are_not_answered_from_the_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "mail.csv", ROWS)
    assert [one.label for one in load(path).train] == [0, 1, 1]
    turned = load(path, labels={"post": "delivery", "money": "billing"})
    assert [one.label for one in turned.train] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", b"subject,body,kind\na,b,post\nc,d\n", "line 3: 2 values for 3 columns"),
        ("m.csv", b"subject,body,kind\na,b,c,post\n", "line 2: 4 values for 3 columns"),
        ("m.csv", b'subject,body,kind\na,"b\nc",post\nd,e,gift\n', "line 4: unknown kind 'gift'"),
        ("m.csv", b"subject,text,kind\na,b,post\n", "line 2: no field 'body': there are subject"),
        ("m.csv", b"subject,body,body\na,b,post\n", "line 1: the first line must name every"),
        ("m.csv", b'subject,body,kind\na,"b,post\n', "not valid CSV"),
        ("m.csv", b"subject,body,kind\n", "holds no examples"),
        ("m.csv", b"", "holds no examples"),
        ("m.csv", b"subject,body,kind\n,b\xff,post\n", "line 2: not UTF-8 (byte 0xff at 2)"),
        ("m.csv", b"subject,body,kind\na, ,post\n", "line 2: field 'body' is empty"),
        ("m.csv", b"subject,body,kind\na,b,\n", "line 2: field 'kind' is empty"),
        ("m.jsonl", b'{"subject": null, "body": "b", "kind": "post"}', "'subject' is empty"),
        ("m.jsonl", b'{"subject": ["x"], "body": "b", "kind": "post"}', "must be text"),
        ("m.txt", b"a", "must end in .jsonl, .jsonl.gz, .csv, .csv.gz, .parquet"),
        ("m.parquet", b"PAR1 not really", "as Parquet"),
    ],
)
def test_bad_input_is_named_with_file_and_line(
    name: str, content: bytes, message: str, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(HoflError) as refusal:
        load(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert list(cache.rglob("*.*")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "either labels or a target column"),
        ({"target_column": "body"}, "either labels or a target column"),
        ({"labels": {"post": "a"}}, "two values or more"),
        ({"labels": {"post": "a", "money": "a"}}, "distinct words"),
        ({"cut": "kind"}, "the field to cut: it holds subject, body"),
        ({"client_column": "owner"}, "line 2: no field 'owner'"),
        ({"label_column": "class"}, "line 2: no field 'class'"),
        ({"train": []}, "the list of files is empty"),
        ({"test": Path("nowhere.csv")}, "no file nowhere.csv"),
    ],
)
def test_bad_settings_are_one_clear_error(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(HoflError) as refusal:
        load(write(tmp_path / "mail.csv", ROWS), **changes)
    assert message in str(refusal.value)


def test_clients_come_from_files_or_from_a_column_not_from_both(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, ROWS) for name in ("a.csv", "b.csv")]
    with pytest.raises(HoflError, match="2 training files or from the column 'user', not from"):
        load(paths, test=paths[0], client_column="user")


def test_a_very_long_cell_is_read(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "body": "long " * 100_000}]
    (example,) = load(write(tmp_path / "mail.csv", rows)).train
    assert len(example.fields["body"]) == 499_999


def test_the_documented_example_runs_as_it_stands(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    table, later = re.findall(r"```csv\n(.*?)```", page, flags=re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    config, _chat = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mail.csv").write_text(table)
    (tmp_path / "later.csv").write_text(later)
    (tmp_path / "mail.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == [
        "Subject: Invoice",
        "Message: You charged me twice, why?",
        "Department:",
    ]
    changes = [f"model.name={tiny_folder}", "task.max_length=48", "engine.threads=1"]
    found = hofl.check(hofl.read_config("mail.toml", changes))
    assert found.clients == (2, 1, 1)
    assert found.sets["train"].labels == (2, 2)
