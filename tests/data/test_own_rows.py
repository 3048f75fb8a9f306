"""Rows in Python as a file: what is written, what is refused, and what is left alone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from hofl.core.errors import HoflError
from hofl.data.own_rows import write_rows

ROWS: list[dict[str, Any]] = [
    {"text": "ein Päckchen\nzu spät", "n": 1, "who": "a"},
    {"text": "the invoice", "n": 2, "who": "b"},
    {"text": "a refund", "n": 3, "who": "a"},
]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    "rows",
    [ROWS, tuple(ROWS), datasets.Dataset.from_list(ROWS), generated, lambda: ROWS, generated()],
    ids=["list", "tuple", "dataset", "generator function", "function", "generator"],
)
def test_every_kind_of_rows_is_written_as_it_is(rows: Any, tmp_path: Path) -> None:
    write_rows(rows, tmp_path / "new" / "train.jsonl", "train")
    assert read(tmp_path / "new" / "train.jsonl") == ROWS
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["train.jsonl"]


def test_numbers_and_arrays_of_libraries_are_plain_values(tmp_path: Path) -> None:
    rows = [{"label": np.int64(3), "scores": np.array([0.5, 1.0])}]
    write_rows(rows, tmp_path / "train.jsonl", "train")
    assert read(tmp_path / "train.jsonl") == [{"label": 3, "scores": [0.5, 1.0]}]


@pytest.mark.parametrize("owners", [[7, 8, 7], lambda row: {"a": 7, "b": 8}[row["who"]]])
def test_owners_become_a_column(owners: Any, tmp_path: Path) -> None:
    write_rows(ROWS, tmp_path / "train.jsonl", "train", owners)
    assert [row["client"] for row in read(tmp_path / "train.jsonl")] == ["7", "8", "7"]


def test_the_same_rows_leave_the_file_alone_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(ROWS, path, "train")
    before = path.stat()
    write_rows(generated, path, "train")
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    with pytest.raises(HoflError, match="holds other rows than train"):
        write_rows(ROWS[:2], path, "train")
    assert read(path) == ROWS


@pytest.mark.parametrize(
    ("rows", "owners", "reason"),
    [
        ([], None, "train has no rows."),
        (lambda: iter(()), None, "train has no rows."),
        (3, None, "train must be a datasets.Dataset, a list of dicts or a function"),
        (["a", "b"], None, "train[0] must be a dict, got 'a'."),
        (datasets.DatasetDict(), None, "train is a mapping of"),
        ({"train": ROWS}, None, "train is a mapping of 'train', not rows: hand over one split"),
        ([{"text": "x"}, {"text": object}], None, "train[1] cannot be written as JSON"),
        (ROWS, ["a", "b"], "clients names 2 owners for 3 rows of train."),
        (ROWS, ["a"] * 4, "clients names 4 owners for 3 rows of train."),
        ([{"client": "a"}], ["a"], 'train has a column "client" of its own'),
    ],
)
def test_what_cannot_be_rows_is_refused_and_nothing_is_left(
    rows: Any, owners: list[str] | Callable[..., str] | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(HoflError) as caught:
        write_rows(rows, tmp_path / "train.jsonl", "train", owners)
    assert reason in str(caught.value)
    assert list(tmp_path.iterdir()) == []
