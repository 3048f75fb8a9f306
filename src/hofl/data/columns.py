"""Look at a user's file: is it conversations, labelled texts or documents, and whose rows are they?

Only names and values of columns are looked at. Whatever is found can be changed in the
configuration that ``hofl init`` writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.data.conversations import ChatColumns
from hofl.data.own_files import files_of
from hofl.data.readers import BadRow, Row, cell, read_rows

MOST_LABELS = 20
"""A column of more values than this is not taken for one of labels."""
KEPT = 1000
"""Different values of a column that are kept in memory."""
_LABELS = ("label", "labels", "class", "category", "kind", "topic", "sentiment", "intent")
_CLIENTS = ("client", "client_id", "user", "user_id", "speaker", "author", "device", "site")
_QUESTIONS = (("question", "answer"), ("query", "response"), ("input", "output"))


@dataclass(frozen=True)
class Recognised:
    """What a training file holds.

    Args:
        task: ``chat``, ``custom`` (labels) or ``text``.
        keys: what to write into the section ``custom`` beside the files.
        rows: number of training examples.
        clients: number of clients that the data name; None where they name none.
        reason: why, for people.
    """

    task: str
    keys: Mapping[str, Any]
    rows: int
    clients: int | None
    reason: str


@dataclass
class _Column:
    """What was seen of a column: its values as long as they are few, and how long they are."""

    values: set[str] = field(default_factory=set)
    characters: int = 0
    filled: int = 0

    def note(self, text: str, most: int) -> None:
        self.characters += len(text)
        self.filled += bool(text)
        if len(self.values) <= most:
            self.values.add(text)


def first_row(data: Path) -> Row:
    """Return the first row of a file, or of the first file in a folder."""
    return next(iter(read_rows(files_of(data)[0])))[1]


def recognise(train: Path, *, label: str | None = None, client: str | None = None) -> Recognised:
    """Read a training file, or one per client in a folder, and tell what it holds.

    Args:
        train: the file or folder.
        label: the column of labels, where it is not found by its name or values.
        client: the column that names the client, likewise.
    """
    files, first = files_of(train), first_row(train)
    for name in filter(None, (label, client)):
        if name not in first:
            raise HoflError(f"{files[0]} has no column {name!r}: it has {', '.join(first)}.")
    columns, rows = {name: _Column() for name in first}, 0
    owner = client or _named(first, _CLIENTS)
    for file in files:
        for _, row in read_rows(file):
            rows += 1
            for name, column in columns.items():
                column.note(_text(row, name), rows if name == owner else KEPT)
    owner = owner if len(files) == 1 and owner and len(columns[owner].values) > 1 else None
    clients = len(files) if len(files) > 1 else None
    if owner is not None:
        clients = len(columns[owner].values)
    task, keys, reason = _kind(first, columns, rows, label, owner)
    if owner is not None:
        keys = {**keys, "client_column": owner}
    return Recognised(task, keys, rows, clients, reason)


def _kind(
    row: Row, columns: Mapping[str, _Column], rows: int, label: str | None, owner: str | None
) -> tuple[str, dict[str, Any], str]:
    """Return the task, its keys, and why."""
    if label is None:
        conversation = _conversation(row)
        if conversation is not None:
            return conversation
    others = [name for name in columns if name not in (label, owner)]
    chosen = label or _label_column({name: columns[name] for name in others}, rows)
    texts = [name for name in others if name != chosen and _is_prose(columns[name])]
    if chosen is not None and texts:
        return "custom", _labelled(chosen, texts, columns), f"labels in {chosen!r}"
    if len(texts) == 1 or "text" in texts:
        text = "text" if "text" in texts else texts[0]
        return "text", {} if text == "text" else {"text_column": text}, f"documents in {text!r}"
    raise HoflError(
        f"the columns {', '.join(columns)} are neither conversations, nor texts with a column of "
        f"at most {MOST_LABELS} labels, nor one column of documents. Name the labels by --label; "
        "call columns of conversations prompt and completion."
    )


def _conversation(row: Row) -> tuple[str, dict[str, Any], str] | None:
    """Find conversations by the names of the columns, in capital letters or not."""
    given = {name.lower(): name for name in row}
    try:
        columns = ChatColumns.found(given, ChatColumns(), "")
    except HoflError:
        pairs = (pair for pair in _QUESTIONS if given.keys() >= set(pair))
        prompt, target = next(pairs, (None, None))
        if prompt is None:
            return None
        columns = ChatColumns(prompt=prompt, target=target)
    used = {part: column for part, column in vars(columns).items() if column is not None}
    keys = {f"{part}_column": given[column] for part, column in used.items()}
    shown = [repr(given[used[part]]) for part in ("messages", "prompt", "target") if part in used]
    known = all(given[column] == column for column in used.values()) and not _is_question(columns)
    return "chat", {} if known else keys, f"conversations in {' and '.join(shown)}"


def _is_question(columns: ChatColumns) -> bool:
    """Return whether the columns are recognised here alone, so that they must be named."""
    return (columns.prompt, columns.target) in _QUESTIONS


def _label_column(columns: Mapping[str, _Column], rows: int) -> str | None:
    """Return the column of labels: by its name, or the only one of few values."""
    few = [
        name
        for name, column in columns.items()
        if 2 <= len(column.values) <= min(MOST_LABELS, rows // 2) and column.filled == rows
    ]
    return _named(few, _LABELS) or (few[0] if len(few) == 1 else None)


def _labelled(label: str, texts: Sequence[str], columns: Mapping[str, _Column]) -> dict[str, Any]:
    """Return the keys of a task with labels: a line for each text, and one for the answer."""
    values = sorted(columns[label].values)
    if not 2 <= len(values) <= KEPT:
        raise HoflError(
            f"the column {label!r} has {'one value' if len(values) < 2 else 'too many values'} for "
            f"labels: two to {KEPT} are allowed."
        )
    lines = [f"{_title(name)}: {{{name}}}" for name in texts]
    return {
        "template": "\n".join([*lines, f"{_title(label)}:"]),
        "cut": max(texts, key=lambda name: columns[name].characters),
        "label_column": label,
        "labels": {value: value for value in values},
    }


def _is_prose(column: _Column) -> bool:
    """Return whether a column holds texts: more than a word or a number in most rows."""
    return column.filled > 0 and column.characters / column.filled > 12


def _named(names: Iterable[str], known: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in names}
    return next((lower[name] for name in known if name in lower), None)


def _title(name: str) -> str:
    return name.replace("_", " ").strip().capitalize()


def _text(row: Row, name: str) -> str:
    try:
        return cell(row, name, empty=True)
    except BadRow:
        return ""  # a list of messages, say
