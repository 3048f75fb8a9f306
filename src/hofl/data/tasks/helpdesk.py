"""Help desk: which department should answer a customer's message? Written for this project.

480 training and 200 test messages to the help desk of an invented shop for household electronics,
balanced over four departments. Small enough for a demonstration, not a benchmark.
"""

import json
from importlib.resources import files

from hofl.data.task import Example, Task


def load() -> Task:
    """Read the two files that ship with the package."""
    return Task(
        name="helpdesk",
        prompt="Message: {text}\nDepartment:",
        labels=("billing", "delivery", "technical", "account"),
        train=_read("train.jsonl"),
        test=_read("test.jsonl"),
    )


def _read(name: str) -> tuple[Example, ...]:
    text = files("hofl.data.tasks").joinpath("helpdesk", name).read_text(encoding="utf-8")
    rows = (json.loads(line) for line in text.splitlines())
    return tuple(Example(row["text"], row["label"]) for row in rows)
