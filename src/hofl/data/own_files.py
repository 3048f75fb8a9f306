"""A task from the user's own files: one training file, one per client, or a column of clients."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hofl.core.errors import HoflError
from hofl.data.readers import BadRow, Row, cell, csv_separator, read_rows
from hofl.data.store import StoredExamples, stored
from hofl.data.task import Example, Form, Task

Files = Path | Sequence[Path]


class Columns(Protocol):
    """How a row becomes an example. Its ``repr`` tells it apart from others in the cache."""

    @property
    def client(self) -> str | None:
        """The column that names the client, or None."""
        ...

    def example(self, row: Row) -> Example:
        """Check a row and return its example, or raise ``BadRow``."""
        ...


def own_task(
    name: str,
    prompts: Mapping[str, Form],
    columns: Columns,
    train: Files | None,
    test: Files,
    classes: tuple[str, ...] = (),
) -> Task:
    """Read a task from files.

    Args:
        name: of the task in reports.
        prompts: how its examples are read; one variant.
        columns: how a row becomes an example.
        train: a file; or one file per client, as a list or a folder; None reads no training file.
        test: a file, a list or a folder.
        classes: names of the labels.
    """
    paths, tests = [] if train is None else files_of(train), files_of(test)
    if columns.client is not None and len(paths) > 1:
        raise HoflError(
            f"clients come from {len(paths)} training files or from the column {columns.client!r}, "
            "not from both."
        )
    examples = _stored("train", paths, columns) if paths else None
    natural = examples is not None and (len(paths) > 1 or columns.client is not None)
    tested = _stored("test", tests, columns)
    return Task(
        name=name,
        prompts=prompts,
        train=examples or (),
        test=tested,
        classes=classes,
        clients=examples.owners if examples is not None and natural else None,
        test_clients=tested.owners,
        note=_separators([*paths, *tests]),
    )


def first_row(train: Files | None, test: Files) -> tuple[str, Row]:
    """Return the first row of the user's files and its place."""
    files = files_of(test if train is None else train)
    return next(iter(read_rows(files[0])))


def _separators(paths: Sequence[Path]) -> str:
    """Name what separates the columns of CSV files, unless it is a comma in all of them."""
    files: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        separator = csv_separator(path)
        if separator not in (None, ","):
            files.setdefault(repr(separator), []).append(path.name)
    shown = [
        f"columns are separated by {separator} in {names[0]}"
        + (f" and {len(names) - 1} more files" if len(names) > 1 else "")
        for separator, names in files.items()
    ]
    return "; ".join(shown)


def files_of(files: Files) -> list[Path]:
    """List the files; a folder's in the order of their names, where 2 stands before 10."""
    if isinstance(files, Path):
        if not files.is_dir():
            return [files]
        visible = [path for path in files.iterdir() if not path.name.startswith(".")]
        if not visible:
            raise HoflError(f"the folder {files} holds no files.")
        return sorted(visible, key=_by_number)
    if not files:
        raise HoflError("the list of files is empty.")
    return list(files)


def _by_number(path: Path) -> list[tuple[str, int]]:
    return [(word, int(part or 0)) for word, part in re.findall(r"(\D*)(\d*)", path.name)]


def _stored(split: str, paths: Sequence[Path], columns: Columns) -> StoredExamples:
    for path in paths:
        if not path.is_file():
            raise HoflError(f"no file {path}.")
    facts = [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return stored(
        f"custom-{split}",
        origin=f"{split} {[str(path.resolve()) for path in paths]}",
        stamp=f"{columns} {facts}",
        rows=_rows(paths, columns, split),
    )


def _rows(paths: Sequence[Path], columns: Columns, split: str) -> Iterator[tuple[Example, str]]:
    """Yield every row of every file as (example, owner); test files need not name the client."""
    column = columns.client
    for number, path in enumerate(paths):
        for place, row in read_rows(path):
            named = column is not None and (split == "train" or column in row)
            try:
                owner = cell(row, str(column)) if named else str(number)
                yield columns.example(row), owner
            except BadRow as error:
                raise HoflError(f"{place}: {error}.") from None
