"""The tasks that ship with hofl. To add one, write a ``load`` function and list it here."""

from collections.abc import Callable
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.data.sources import Benchmark
from hofl.data.task import Task
from hofl.data.tasks import helpdesk
from hofl.data.tasks.ag_news import AG_NEWS
from hofl.data.tasks.boolq import BOOLQ
from hofl.data.tasks.sciq import SCIQ
from hofl.data.tasks.squad import SQUAD
from hofl.data.tasks.sst2 import SST2

BENCHMARKS: dict[str, Benchmark] = {b.name: b for b in (SST2, BOOLQ, SCIQ, AG_NEWS, SQUAD)}

TASKS: dict[str, Callable[[Path | None], Task]] = {
    "helpdesk": helpdesk.load,
    **{name: benchmark.load for name, benchmark in BENCHMARKS.items()},
}


def check_task(name: str) -> None:
    """Refuse an unknown task."""
    if name not in TASKS:
        raise HoflError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}.")


def load_task(name: str, directory: Path | None = None) -> Task:
    """Load a task by name; ``directory`` holds the files of the public sets (docs/data.md)."""
    check_task(name)
    return TASKS[name](directory)
