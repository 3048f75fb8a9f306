"""The tasks that ship with hofl. To add one, write a ``load`` function and list it here."""

from collections.abc import Callable

from hofl.data.task import Task
from hofl.data.tasks import helpdesk
from hofl.errors import HoflError

TASKS: dict[str, Callable[[], Task]] = {"helpdesk": helpdesk.load}


def load_task(name: str) -> Task:
    """A task by name."""
    if name not in TASKS:
        raise HoflError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}.")
    return TASKS[name]()
