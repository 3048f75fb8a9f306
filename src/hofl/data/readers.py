"""Read the rows of JSON Lines, CSV and Parquet files, each with its place in the file.

Nothing is dropped but blank lines of a CSV file: a line that cannot be read is an error that names
the file and the line.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError

Row = Mapping[str, Any]
Reader = Callable[[Path], Generator[tuple[int, Row]]]
LONGEST_CELL = 2**30
"""Python's CSV reader refuses cells of more than 128 KiB by default."""
SEPARATORS = (",", ";", "\t", "|")
"""Of the columns of a CSV file; among equals the earlier one is taken."""


class BadRow(ValueError):
    """What is wrong with a row; the caller adds its place."""


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield each row of a file with its place, such as ``reviews.csv line 17``.

    Raises:
        HoflError: the file is missing, of an unknown kind, damaged, or holds no row at all.
    """
    reader = _kind(path)
    if reader is None:
        raise HoflError(f"cannot read {path}: its name must end in {', '.join(READERS)}.")
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
    """Return the place of a row as errors name it."""
    return f"{path} {'row' if path.suffix == '.parquet' else 'line'} {number}"


def text(row: Row, name: str, *, empty: bool = False) -> str:
    """Return a field that must be text, and not blank unless ``empty`` allows it."""
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
    """Return a field that must be there."""
    if name not in row:
        raise BadRow(f"no field {name!r}: there are {', '.join(map(str, row)) or 'none'}")
    return row[name]


def cell(row: Row, name: str, *, empty: bool = False) -> str:
    """Return a cell as text; numbers and truth values are written as JSON writes them."""
    value: Any = required(row, name)
    if value is None or value != value:  # Parquet's empty cells: null, or not a number
        value = ""
    elif isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, int | float):
        value = str(value)
    return text({name: value}, name, empty=empty).strip()


def label_index(row: Row, name: str, classes: tuple[str, ...]) -> int:
    """Return a field that must be a whole number, the index of one of the classes."""
    value = required(row, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(classes):
        known = ", ".join(f"{k} ({name})" for k, name in enumerate(classes))
        raise BadRow(f"unknown {name} {value!r}: allowed are {known}")
    return value


def _kind(path: Path) -> Reader | None:
    """Return the reader of a file by its name."""
    name = path.name.lower()
    return next((reader for suffix, reader in READERS.items() if name.endswith(suffix)), None)


def _lines(path: Path) -> Generator[str]:
    """Yield decoded lines with their newlines, without a byte order mark."""
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
            except (ValueError, RecursionError) as error:  # also of huge numbers and depths
                raise HoflError(
                    f"{place(path, number)}: not valid JSON ({error}). Write one object per line."
                ) from None
            if not isinstance(row, dict):
                raise HoflError(f"{place(path, number)}: not a JSON object: {line.strip()[:60]!r}.")
            yield number, row


def csv_separator(path: Path) -> str | None:
    """Return what separates the columns of a CSV file: what splits its first line into most parts.

    None for a file of another kind, and for one whose first line cannot be read.
    """
    if _kind(path) is not _csv or not path.is_file():
        return None
    with closing(_lines(path)) as lines:
        try:
            return _separator(next(lines, ""))
        except (HoflError, csv.Error, EOFError, OSError, zlib.error):
            return None  # reading the file reports it


def _separator(header: str) -> str:
    csv.field_size_limit(LONGEST_CELL)
    return max(SEPARATORS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def _csv(path: Path) -> Generator[tuple[int, Row]]:
    with closing(_lines(path)) as lines:
        first = next(lines, "")
        separator = _separator(first)
        reader = csv.reader(chain([first], lines), strict=True, delimiter=separator)
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
                        f"columns ({', '.join(header)}). Put quotes around a text that holds "
                        f"{separator!r}."
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
