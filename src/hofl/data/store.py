"""Examples in memory-mapped Arrow files: written once while a file is checked, then shared.

The file's pages belong to the system's page cache. Any number of clients and processes share them;
a client's share of the data is a list of row numbers.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.process import cache_dir
from hofl.data.task import Example

FORMAT = 1
"""Version of the files below; increase it when they change."""
_ROWS = 512  # per record batch
_FIELD = "field:"


class StoredExamples(Sequence[Example]):
    """The examples of an Arrow file, built one at a time.

    Columns: ``field:NAME`` for every field, ``label``, ``options``, ``golds``, ``owner``.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.ipc

        self.path = path
        self._reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        self._batches = [self._reader.get_batch(k) for k in range(self._reader.num_record_batches)]
        names = self._reader.schema.names
        self._fields = {name.removeprefix(_FIELD): name for name in names if _FIELD in name}
        self._length = sum(batch.num_rows for batch in self._batches)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Example, ...]: ...
    def __getitem__(self, index: int | slice) -> Example | tuple[Example, ...]:
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(len(self))))
        position = range(len(self))[index]
        batch, row = self._batches[position // _ROWS], position % _ROWS
        return Example(
            fields={field: batch[name][row].as_py() for field, name in self._fields.items()},
            label=batch["label"][row].as_py(),
            options=tuple(batch["options"][row].as_py()),
            golds=tuple(batch["golds"][row].as_py()),
        )

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield (fields by name, label, options, golds) of every example, a column at a time."""
        fields = sorted(self._fields.items())
        for batch in self._batches:
            columns = [batch[name].to_pylist() for _, name in fields]
            named = ([(f, text) for (f, _), text in zip(fields, texts, strict=True)]
                     for texts in zip(*columns, strict=True))  # fmt: skip
            rest = (batch[name].to_pylist() for name in ("label", "options", "golds"))
            yield from zip(named, *rest, strict=True)

    @cached_property
    def labels(self) -> np.ndarray:
        """Return every example's label, [n], without building the examples."""
        return np.concatenate([batch["label"].to_numpy() for batch in self._batches])

    @cached_property
    def characters(self) -> np.ndarray:
        """Return the characters of every example's texts, [n], without building the examples."""
        return np.concatenate([self._characters(batch) for batch in self._batches])

    def _characters(self, batch: Any) -> np.ndarray:
        import pyarrow.compute as compute

        def lengths(texts: Any) -> np.ndarray:
            return compute.utf8_length(texts).to_numpy()

        options = batch["options"]
        fields = sum(lengths(batch[name]) for name in self._fields.values())
        texts = np.maximum(compute.list_value_length(options).to_numpy(), 1)
        return fields * texts + lengths(compute.binary_join(options, ""))

    @cached_property
    def owners(self) -> np.ndarray:
        """Return every example's client in the data, [n], numbered from 0 in the order of names.

        Names that are whole numbers are ordered as such: 0, 1, ..., N-1 stay what they are.
        """
        names = [name for batch in self._batches for name in batch["owner"].to_pylist()]
        distinct = set(names)
        whole = all(name.isascii() and name.isdigit() for name in distinct)
        order = sorted(distinct, key=lambda name: (int(name) if whole else 0, name))
        number = {name: k for k, name in enumerate(order)}
        return np.fromiter((number[name] for name in names), dtype=np.int64, count=len(names))


def labels_of(examples: Sequence[Example]) -> np.ndarray:
    """Return the labels of all examples, [n]; stored examples need not be built for it."""
    if isinstance(examples, StoredExamples):
        return examples.labels
    return np.array([example.label for example in examples], dtype=np.int64)


def digest_of(examples: Sequence[Example]) -> str:
    """Return SHA-256 of the examples in their order, however they are stored."""
    if isinstance(examples, StoredExamples):
        rows = examples.rows()
    else:
        rows = ((sorted(e.fields.items()), e.label, e.options, e.golds) for e in examples)
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def characters_of(examples: Sequence[Example]) -> np.ndarray:
    """Return how many characters each example's texts have, [n]; an option is a text each."""
    if isinstance(examples, StoredExamples):
        return examples.characters
    sizes = [
        sum(map(len, e.fields.values())) * max(len(e.options), 1) + sum(map(len, e.options))
        for e in examples
    ]
    return np.array(sizes, dtype=np.int64)


def stored(
    name: str, origin: str, stamp: str, rows: Iterable[tuple[Example, str]]
) -> StoredExamples:
    """Return examples from the cache; write them there first from ``rows`` of (example, owner).

    Args:
        name: for people who browse the cache.
        origin: what the rows are made from; one file is kept for each.
        stamp: changes with the rows; a file with another stamp is replaced.
        rows: read only if the file has to be written.
    """
    folder = cache_dir() / "data" / f"{name}-{_digest(origin)}"
    target = folder / f"{_digest(f'{FORMAT} {stamp}')}.arrow"
    if not target.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(target, rows)
        except OSError as error:
            raise HoflError(
                f"cannot write the data cache {folder}: {error.strerror or error}. Set HOFL_CACHE "
                "to a folder with room for the data."
            ) from None
    return StoredExamples(target)


def _write(target: Path, rows: Iterable[tuple[Example, str]]) -> None:
    """Stream the rows to a file beside ``target``, then move it into place atomically."""
    import pyarrow
    import pyarrow.ipc

    handle, work = tempfile.mkstemp(dir=target.parent, prefix=".writing-")
    os.close(handle)
    try:
        with pyarrow.OSFile(work, "wb") as sink:
            writer = None
            for table in _tables(rows):
                writer = writer or pyarrow.ipc.new_file(sink, table.schema)
                writer.write_table(table, max_chunksize=_ROWS)
            if writer is None:
                raise HoflError("the data hold no examples.")
            writer.close()
        os.replace(work, target)
        for other in target.parent.glob("*.arrow"):
            if other != target:  # an earlier version of the same data
                other.unlink(missing_ok=True)
    finally:
        Path(work).unlink(missing_ok=True)


def _tables(rows: Iterable[tuple[Example, str]]) -> Iterator[Any]:
    import pyarrow

    words = pyarrow.list_(pyarrow.string())
    stream = iter(rows)
    while chunk := list(islice(stream, _ROWS)):
        examples = [example for example, _ in chunk]
        columns = {
            _FIELD + name: pyarrow.array([e.fields[name] for e in examples], pyarrow.string())
            for name in examples[0].fields
        }
        columns["label"] = pyarrow.array([e.label for e in examples], pyarrow.int64())
        columns["options"] = pyarrow.array([e.options for e in examples], words)
        columns["golds"] = pyarrow.array([e.golds for e in examples], words)
        columns["owner"] = pyarrow.array([owner for _, owner in chunk], pyarrow.string())
        yield pyarrow.table(columns)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
