"""Rows of JSON Lines, CSV and Parquet files, each with the place where it stands.

Nothing is dropped but blank lines of a CSV file: a line that cannot be read is an error that names
the file and the line.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from hofl.errors import HoflError

Row = Mapping[str, Any]
Reader = Callable[[Path], Generator[tuple[int, Row]]]
LONGEST_CELL = 2**30
"""Python's CSV reader refuses cells of more than 128 KiB unless told otherwise."""


class BadRow(ValueError):
    """What is wrong with one row; whoever reads the file adds the place."""


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row of a file and its place, such as ``reviews.csv line 17``.

    Raises:
        HoflError: the file is missing, of an unknown kind, damaged, or holds no row at all.
    """
    reader = _reader(path)
    if not path.is_file():
        raise HoflError(f"no file {path}.")
    empty = True
    try:
        with closing(reader(path)) as rows:
            for number, row in rows:
                empty = False
                yield place(path, number), row
    except (EOFError, OSError, zlib.error) as error:  # of a cut or damaged gzip file
        raise HoflError(f"cannot read {path}: {error}.") from error
    if empty:
        raise HoflError(f"{path} holds no examples.")


def place(path: Path, number: int) -> str:
    """Where a row stands, as errors name it."""
    return f"{path} {'row' if path.suffix == '.parquet' else 'line'} {number}"


def text(row: Row, name: str, *, empty: bool = False) -> str:
    """A field that must be text, and not blank unless ``empty`` allows it."""
    value = required(row, name)
    if not isinstance(value, str):
        raise BadRow(f"field {name!r} must be text, got {value!r}")
    if not empty and not value.strip():
        raise BadRow(f"field {name!r} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        raise BadRow(f"field {name!r} is not valid Unicode: {value[:60]!r}") from None
    return value


def required(row: Row, name: str) -> Any:
    """A field that must be there."""
    if name not in row:
        raise BadRow(f"no field {name!r}: there are {', '.join(map(str, row)) or 'none'}")
    return row[name]


def label_index(row: Row, name: str, classes: tuple[str, ...]) -> int:
    """A whole number that counts ``classes``."""
    value = required(row, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(classes):
        known = ", ".join(f"{k} ({one})" for k, one in enumerate(classes))
        raise BadRow(f"unknown {name} {value!r}: allowed are {known}")
    return value


def _reader(path: Path) -> Reader:
    name = path.name.lower()
    for suffix, reader in READERS.items():
        if name.endswith(suffix):
            return reader
    raise HoflError(f"cannot read {path}: its name must end in {', '.join(READERS)}.")


def _lines(path: Path) -> Generator[str]:
    """Decoded lines, with their newlines; a byte order mark is not part of the text."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                decoded = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise HoflError(
                    f"{place(path, number)}: not UTF-8 (byte {line[error.start]:#04x} at "
                    f"{error.start}). Save the file as UTF-8."
                ) from None
            yield decoded.removeprefix("\ufeff") if number == 1 else decoded


def _json_lines(path: Path) -> Generator[tuple[int, Row]]:
    with closing(_lines(path)) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also of absurd numbers and depths
                raise HoflError(
                    f"{place(path, number)}: not valid JSON ({error}). Write one object per line."
                ) from None
            if not isinstance(row, dict):
                raise HoflError(f"{place(path, number)}: not a JSON object: {line.strip()[:60]!r}.")
            yield number, row


def _csv(path: Path) -> Generator[tuple[int, Row]]:
    csv.field_size_limit(LONGEST_CELL)
    with closing(_lines(path)) as lines:
        reader = csv.reader(lines, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if len(set(header)) < len(header) or not all(header):
                raise HoflError(
                    f"{place(path, 1)}: the first line must name every column once, got "
                    f"{', '.join(map(repr, header))}."
                )
            for cells in filter(None, reader):
                if len(cells) != len(header):
                    raise HoflError(
                        f"{place(path, reader.line_num)}: {len(cells)} values for {len(header)} "
                        f"columns ({', '.join(header)}). Put quotes around a text with commas."
                    )
                yield reader.line_num, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise HoflError(f"{place(path, reader.line_num)}: not valid CSV ({error}).") from None


def _parquet(path: Path) -> Generator[tuple[int, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise HoflError(f"cannot read {path} as Parquet: {reason.rstrip('.')}.") from None


READERS: dict[str, Reader] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".csv": _csv,
    ".csv.gz": _csv,
    ".parquet": _parquet,
}
