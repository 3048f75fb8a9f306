"""The user's own data: CSV, JSON Lines or Parquet, a prompt, and labels or free-text answers.

Columns that the template names become fields. Clients come with the data if there is one file for
each, or a column that names them; otherwise a partition makes them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.data.readers import BadRow, Row, csv_separator, read_rows, required, text
from hofl.data.store import StoredExamples, stored
from hofl.data.task import Answer, Example, FreeText, LabelWords, Prompt, Task

Files = Path | Sequence[Path]


@dataclass(frozen=True)
class Columns:
    """How a row becomes an example.

    Args:
        fields: columns that the template names.
        optional: those of them that may be empty.
        label: column of the label, or None for free text.
        values: the label column's values, in the order of the label words.
        target: column of the free-text answer, or None for labels.
        client: column that names the client, or None.
    """

    fields: tuple[str, ...]
    optional: tuple[str, ...]
    label: str | None
    values: tuple[str, ...]
    target: str | None
    client: str | None

    def example(self, row: Row) -> Example:
        """Check a row and return its example."""
        fields = {name: _cell(row, name, empty=name in self.optional) for name in self.fields}
        if self.target is not None:
            return Example(fields, golds=_golds(row, self.target))
        assert self.label is not None
        value = _cell(row, self.label)
        if value not in self.values:
            raise BadRow(
                f"unknown {self.label} {value!r}: allowed are {', '.join(map(repr, self.values))}"
            )
        return Example(fields, self.values.index(value))


def load_custom(
    *,
    train: Files | None,
    test: Files,
    template: str,
    cut: str,
    labels: Mapping[str, str] | None = None,
    label_column: str = "label",
    target_column: str | None = None,
    client_column: str | None = None,
    optional: Sequence[str] = (),
    max_new_tokens: int = 64,
    name: str = "custom",
) -> Task:
    """Load a task from the user's own files.

    Args:
        train: a file; or one file per client, as a list or a folder; None reads no training file.
        test: a file, a list or a folder.
        template: prompt with ``{column}``s, ending where the answer begins.
        cut: the column that loses its end when a prompt is too long.
        labels: value in the label column -> the word that answers the prompt.
        label_column: where the labels are.
        target_column: where free-text answers are, instead of labels.
        client_column: which client a training row belongs to.
        optional: columns of the template that may be empty.
        max_new_tokens: cap of a generated answer.
        name: of the task in reports.
    """
    if (labels is None) == (target_column is None):
        raise HoflError("own data need either labels or a target column, and not both.")
    words = {} if labels is None else {key: word.strip() for key, word in labels.items()}
    distinct = {word for word in words.values() if word}
    if labels is not None and (len(words) < 2 or len(distinct) < len(words)):
        raise HoflError(f"labels must map two values or more to distinct words, got {words}.")
    answer: Answer = (
        FreeText(max_new_tokens) if labels is None else LabelWords(tuple(words.values()))
    )
    prompt = Prompt(template, cut, answer)
    columns = Columns(
        fields=prompt.fields,
        optional=tuple(optional),
        label=None if labels is None else label_column,
        values=tuple(words),
        target=target_column,
        client=client_column,
    )
    paths, tests = [] if train is None else _files(train), _files(test)
    if client_column is not None and len(paths) > 1:
        raise HoflError(
            f"clients come from {len(paths)} training files or from the column {client_column!r}, "
            "not from both."
        )
    examples = _stored("train", paths, columns) if paths else None
    natural = examples is not None and (len(paths) > 1 or client_column is not None)
    return Task(
        name=name,
        prompts={"own": prompt},
        train=examples or (),
        test=_stored("test", tests, columns),
        classes=tuple(words.values()),
        clients=examples.owners if examples is not None and natural else None,
        note=_separators([*paths, *tests]),
    )


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


def _files(files: Files) -> list[Path]:
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
    """Yield every row of every file as (example, owner); a test set has no owners."""
    column = columns.client if split == "train" else None
    for number, path in enumerate(paths):
        for place, row in read_rows(path):
            try:
                owner = str(number) if column is None else _cell(row, column)
                yield columns.example(row), owner
            except BadRow as error:
                raise HoflError(f"{place}: {error}.") from None


def _cell(row: Row, name: str, *, empty: bool = False) -> str:
    """Return a cell as text; numbers and truth values are written as JSON writes them."""
    value: Any = required(row, name)
    if value is None or value != value:  # Parquet's empty cells: null, or not a number
        value = ""
    elif isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, int | float):
        value = str(value)
    return text({name: value}, name, empty=empty).strip()


def _golds(row: Row, name: str) -> tuple[str, ...]:
    value = required(row, name)
    if isinstance(value, list) and not value:
        raise BadRow(f"field {name!r} lists no answer")
    golds = tuple(
        _cell({name: gold}, name) for gold in (value if isinstance(value, list) else [value])
    )
    for gold in golds:
        if "\n" in gold:  # an answer is generated up to a newline
            raise BadRow(f"field {name!r} must be one line, got {gold[:60]!r}")
    return golds
