"""Help desk: which department should answer a customer's message? Written for this project.

480 training and 200 test messages to the help desk of an invented shop for household electronics,
balanced over four departments. Small enough for a demonstration, not a benchmark.
"""

import json
from importlib.resources import files
from pathlib import Path

from hofl.data.task import Example, LabelWords, Prompt, Task

DEPARTMENTS = ("billing", "delivery", "technical", "account")


def load(_directory: Path | None = None) -> Task:
    """Read the two files that ship with the package."""
    template = "Message: {text}\nDepartment:"
    return Task(
        name="helpdesk",
        prompts={"department": Prompt(template, cut="text", answer=LabelWords(DEPARTMENTS))},
        train=_read("train.jsonl"),
        test=_read("test.jsonl"),
        classes=DEPARTMENTS,
    )


def _read(name: str) -> tuple[Example, ...]:
    text = files("hofl.data.tasks").joinpath("helpdesk", name).read_text(encoding="utf-8")
    rows = (json.loads(line) for line in text.splitlines())
    return tuple(Example({"text": row["text"]}, row["label"]) for row in rows)
