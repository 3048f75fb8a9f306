"""Rows that live in Python, written as a file of JSON Lines: what everything else reads.

A file can be digested, resumed from, and read by other processes; an object in memory cannot.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hofl.core.durable import PARTIAL, file_digest, sync_folder
from hofl.core.errors import HoflError
from hofl.data.readers import Row

Rows = Iterable[Row] | Callable[[], Iterable[Row]]
"""A list of dicts, a ``datasets.Dataset`` or any other iterable of rows; or a function that returns
one, such as a generator function."""
Owners = Sequence[object] | Callable[[Row], object]
"""The client of each row, in their order; or a function from a row to its client."""
OWNER = "client"
"""The column in which owners are written."""


def write_rows(rows: Rows, path: Path, name: str, owners: Owners | None = None) -> None:
    """Write rows to a file; one that is there already must hold the same rows, and is kept.

    Args:
        rows: each a mapping from columns to plain values.
        path: ends in ``.jsonl``.
        name: of the rows in errors.
        owners: their clients, which become the column ``client``.

    Raises:
        HoflError: a row cannot be written, there is none, or the file holds others.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + PARTIAL)
    digest, empty = hashlib.sha256(), True
    try:
        with fresh.open("wb") as file:
            for line in _lines(rows, name, owners):
                empty = False
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if empty:
            raise HoflError(f"{name} has no rows.")
        if not path.exists():
            os.replace(fresh, path)
            sync_folder(path.parent)
        elif file_digest(path) != digest.hexdigest():
            raise HoflError(
                f"{path} holds other rows than {name}: choose another out, or replace the run by "
                'exist="replace".'
            )
    finally:
        fresh.unlink(missing_ok=True)


def _lines(rows: Rows, name: str, owners: Owners | None) -> Iterator[bytes]:
    iterable = rows() if callable(rows) else rows
    if isinstance(iterable, Mapping):
        keys = ", ".join(map(repr, list(iterable)[:4]))
        raise HoflError(
            f"{name} is a mapping of {keys}, not rows: hand over one split, or a list of dicts."
        )
    if not isinstance(iterable, Iterable):
        raise HoflError(
            f"{name} must be a datasets.Dataset, a list of dicts or a function that returns rows, "
            f"got {type(iterable).__name__}."
        )
    named = _owned(iterable, name, owners) if owners is not None else iterable
    for number, row in enumerate(named):
        if not isinstance(row, Mapping):
            raise HoflError(f"{name}[{number}] must be a dict, got {str(row)[:60]!r}.")
        try:
            yield json.dumps(dict(row), default=_plain).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise HoflError(f"{name}[{number}] cannot be written as JSON: {error}.") from None


def _owned(rows: Iterable[Any], name: str, owners: Owners) -> Iterator[Any]:
    """Yield the rows with the column of their clients."""
    count = 0
    for number, row in enumerate(rows):
        count += 1
        if not isinstance(row, Mapping):
            yield row  # reported by the caller
            continue
        if OWNER in row:
            raise HoflError(
                f'{name} has a column "{OWNER}" of its own: give clients="{OWNER}" to use it, or '
                "rename it."
            )
        if callable(owners):
            yield {**row, OWNER: str(owners(row))}
        elif number < len(owners):
            yield {**row, OWNER: str(owners[number])}
    if not callable(owners) and len(owners) != count:
        raise HoflError(f"clients names {len(owners)} owners for {count} rows of {name}.")


def _plain(value: Any) -> Any:
    """Return arrays, tensors and their scalars as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.60} is a {type(value).__name__}")
