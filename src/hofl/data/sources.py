"""The public benchmarks, from a folder of files or from the Hugging Face hub.

A folder holds ``NAME/SPLIT.jsonl`` or ``.jsonl.gz``, one object per line (docs/data.md). Either way
the rows are checked once and kept as ``Example``s in the cache, so the hub is queried once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.data.readers import BadRow, Row, read_rows
from hofl.data.store import StoredExamples, stored
from hofl.data.task import Example, Prompt, Task

HUB_SECONDS = 10
"""How long the hub may take to answer."""


@dataclass(frozen=True)
class Benchmark:
    """A public data set as a task.

    Args:
        name: of the task, and of its folder.
        hub: its id on the Hugging Face hub.
        sizes: official number of examples of the training split and of the test split.
        prompts: variants by name; the first is the default.
        example: (row number, row of a file or of the hub) -> example; raises ``BadRow``.
        classes: names of the labels.
        version: of ``example``; increase it when its results change.
    """

    name: str
    hub: str
    sizes: Mapping[str, int]
    prompts: Mapping[str, Prompt]
    example: Callable[[int, Row], Example]
    classes: tuple[str, ...] = ()
    version: int = 1

    def load(self, directory: Path | None = None) -> Task:
        """Load the task from ``directory``, or else from $HOFL_DATA, or else from the hub."""
        directory = directory or _environment()
        parts, notes = [], []
        for split, official in self.sizes.items():
            if directory is None:
                examples, origin = _from_hub(self, split)
            else:
                examples, origin = _from_folder(self, split, directory)
            parts.append(examples)
            if len(examples) != official:
                notes.append(f"{origin} holds {len(examples):,} of {official:,} examples")
        return Task(
            name=self.name,
            prompts=self.prompts,
            train=parts[0],
            test=parts[1],
            classes=self.classes,
            note="; ".join(notes),
        )


def _environment() -> Path | None:
    folder = os.environ.get("HOFL_DATA")
    return Path(folder) if folder else None


def _from_folder(benchmark: Benchmark, split: str, directory: Path) -> tuple[StoredExamples, str]:
    path = _find(benchmark, split, directory)
    facts = path.stat()
    examples = stored(
        f"{benchmark.name}-{split}",
        origin=str(path.resolve()),
        stamp=f"{benchmark.version} {facts.st_size} {facts.st_mtime_ns}",
        rows=_examples(benchmark, read_rows(path)),
    )
    return examples, str(path)


def _find(benchmark: Benchmark, split: str, directory: Path) -> Path:
    """Find the split's file: the whole one, or a part of the set that is named as such."""
    folder = directory / benchmark.name
    names = [f"{split}{part}.jsonl{kind}" for part in ("", "_partial") for kind in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise HoflError(
        f"{folder} has no {split}.jsonl or {split}.jsonl.gz. The data folder (data.dir or "
        "HOFL_DATA) must be laid out as in docs/data.md."
    )


def _from_hub(benchmark: Benchmark, split: str) -> tuple[StoredExamples, str]:
    examples = stored(
        f"{benchmark.name}-{split}",
        origin=f"hub {benchmark.hub} {split}",
        stamp=str(benchmark.version),
        rows=_examples(benchmark, _hub_rows(benchmark.hub, split)),
    )
    return examples, f"{benchmark.hub} {split} of the hub"


def _hub_rows(hub: str, split: str) -> Iterator[tuple[str, Row]]:
    """Yield rows with the hub's own columns. The only place that imports ``datasets``."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets
    from huggingface_hub import HfApi, constants

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity_error()
    try:
        if not constants.HF_HUB_OFFLINE:
            HfApi().dataset_info(hub, timeout=HUB_SECONDS)  # load_dataset would retry for minutes
        rows = datasets.load_dataset(hub, split=split)
    except Exception as error:  # the libraries raise many unrelated types
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise HoflError(
            f"cannot load {hub!r} from the Hugging Face hub: {reason}. Give a folder with the "
            "files by data.dir or HOFL_DATA (see docs/data.md), or set HF_HUB_OFFLINE=1 if the "
            "hub's own cache holds the set."
        ) from None
    for number, row in enumerate(rows):
        yield f"{hub} {split} row {number}", row


def _examples(
    benchmark: Benchmark, rows: Iterable[tuple[str, Row]]
) -> Iterator[tuple[Example, str]]:
    for number, (place, row) in enumerate(rows):
        try:
            yield benchmark.example(number, row), ""
        except BadRow as error:
            raise HoflError(f"{place}: {error}.") from None
