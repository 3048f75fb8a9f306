"""Data handed over from Python: written beside the run, and named in its configuration."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hofl.core.errors import HoflError
from hofl.data.own_rows import OWNER, Owners, Rows, write_rows
from hofl.data.readers import BadRow, cell, read_rows
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.data_config import CustomConfig
from hofl.experiment.tasks import OWN_DATA

DATA = "data"
"""Folder of handed-over rows in a run or a comparison."""
Source = Rows | str | Path | Sequence[str | Path]
"""Rows, or files of them."""


def with_data(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    train: Source | None = None,
    test: Source | None = None,
    clients: str | Owners | None = None,
) -> ExperimentConfig:
    """Write rows to ``folder`` and return the configuration that reads them from there.

    ``hofl.run`` does so in the run's own folder; for ``hofl.check`` and ``hofl.compare`` it is done
    beforehand. Rows that are there already must be the same.

    Args:
        config: of task ``custom``, ``chat`` or ``text``.
        folder: where ``train.jsonl`` and ``test.jsonl`` are written.
        train: a ``datasets.Dataset``, a list of dicts, a function that returns rows, or files.
        test: the same for the examples to evaluate on.
        clients: the column that names the client of a training row; or the client of every row, as
            a list or as a function of the row. Without it ``data.partition`` makes the clients.
    """
    if config.task.name not in OWN_DATA:
        raise HoflError(
            f"task {config.task.name!r} has data of its own: to hand over rows, set task.name to "
            f"one of {', '.join(OWN_DATA)}."
        )
    changes: dict[str, Any] = {}
    column, owners = (clients, None) if isinstance(clients, str | None) else (OWNER, clients)
    if column is not None:
        changes["client_column"] = column
    for name, source in (("train", train), ("test", test)):
        if source is not None:
            mine = owners if name == "train" else None
            changes[name] = _files(source, Path(folder) / f"{name}.jsonl", name, mine)
    custom = (config.custom or CustomConfig()).model_copy(update=changes)
    fleet = config.fleet
    if column is not None and "clients" not in fleet.model_fields_set:
        fleet = fleet.model_copy(update={"clients": _count(custom, column)})
    return config.model_copy(update={"custom": custom, "fleet": fleet})


@contextmanager
def python_places(folder: Path) -> Iterator[None]:
    """Name rows in errors as Python counts them: ``train[16]``, not a line of a file."""
    try:
        yield
    except HoflError as error:
        file = rf"{re.escape(str(folder))}/(train|test)\.jsonl line (\d+)"
        text = re.sub(file, lambda place: f"{place[1]}[{int(place[2]) - 1}]", str(error))
        raise HoflError(text) from None


def _files(source: Source, path: Path, name: str, owners: Owners | None) -> str | tuple[str, ...]:
    """Return the file of these rows, or the files that were named."""
    if isinstance(source, str | Path):
        return str(Path(source).resolve())
    if isinstance(source, Sequence) and source and isinstance(source[0], str | Path):
        return tuple(str(Path(str(file)).resolve()) for file in source)
    write_rows(source, path.resolve(), name, owners)  # type: ignore[arg-type]
    return str(path.resolve())


def _count(custom: CustomConfig, column: str) -> int:
    """Return how many clients a column of the training rows names."""
    if not isinstance(custom.train, str) or not Path(custom.train).is_file():
        raise HoflError("clients are counted in one file of training rows: set fleet.clients.")
    names = set()
    for place, row in read_rows(Path(custom.train)):
        try:
            names.add(cell(row, column))
        except BadRow as error:
            raise HoflError(f"{place}: {error}.") from None
    return len(names)
