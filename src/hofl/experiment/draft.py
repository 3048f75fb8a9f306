"""A first configuration: TOML with comments, from a model, a file of examples and budgets."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.core.sizes import AUTO, parse_bytes
from hofl.data.columns import Recognised
from hofl.data.tasks import check_task
from hofl.experiment.changes import BASE, anchored, portable
from hofl.experiment.config import checked_method, parse_config
from hofl.experiment.origins import toml_value

FREE = ("free", AUTO)
LONGEST_DEFAULT = 512
"""Most tokens that a task reads unless the configuration sets another number."""
COMMENTS = {
    "rounds": "T; hofl check estimates how long they take",
    "model.name": "built-in, folder, GGUF file or Hugging Face id",
    "task.max_length": "the model's window",
    "task.batch_size": "examples of a local step",
    "custom.labels": "value of the column -> word that the model answers",
    "custom.template": "the prompt; it ends where the answer begins",
    "custom.cut": "loses its end where a prompt is too long",
    "custom.test": "not used: evaluation.test is false",
    "fleet.clients": "devices",
    "fleet.cohort": "devices of a round",
    "fleet.budgets": "memory of each tier of devices; what each runs is planned",
    "fleet.boundaries": "share of the blocks that is not trained exactly, by tier",
    "method.name": "hofl methods lists the others",
    "method.local_steps": "steps of a device in a round",
    "method.optimizer.lr": "lower it if the training loss rises",
    "evaluation.every": "rounds between two evaluations",
    "evaluation.holdout": "share of every client's examples that is kept for evaluation",
}


def draft(
    path: Path,
    model: str,
    train: Path | None,
    test: Path | None,
    recognised: Recognised | None,
    budgets: Sequence[str] = (),
    task: str | None = None,
) -> str:
    """Return a complete configuration for a file at ``path``, checked as it will be read.

    Args:
        path: where it will be written; paths in it are relative to its folder.
        model: name of the model.
        train: training file or folder; None for a ``task``.
        test: test file; without it, examples of every client are held out.
        recognised: what the training file holds.
        budgets: memory of the devices, such as 2GiB; without any, the paper's three tiers.
        task: a task that comes with hofl.
    """
    for budget in budgets:
        if budget not in FREE:
            parse_bytes(budget)
    if task is not None:
        check_task(task)
    clients = _clients(recognised)
    cohort = min(clients, max(2, min(clients // 4, 10)))
    window = _window(model)
    values: dict[str, Any] = {
        "name": path.stem[:64],
        "rounds": 20,
        "model": {"name": model},
        "task": {"name": recognised.task if recognised else task, "batch_size": 8},
    }
    if window is not None and window < LONGEST_DEFAULT:
        values["task"]["max_length"] = window
    evaluation: dict[str, Any] = {"every": 5}
    if recognised is not None:
        values["custom"] = {"train": str(train), "test": str(test or train), **recognised.keys}
        if test is None:
            evaluation |= {"test": False, "holdout": 0.2}
    fleet: dict[str, Any] = {"clients": clients, "cohort": cohort}
    fleet |= {"budgets": list(budgets)} if budgets else {"boundaries": [0.25, 0.5, 0.75]}
    values["fleet"] = fleet
    values["method"] = {"name": "hofl", "local_steps": 4, "optimizer": {"lr": 1e-3}}
    values["evaluation"] = evaluation
    folder = path.resolve().parent
    written = portable(values, folder)
    checked_method(parse_config(anchored(dict(written), folder)))
    return _toml(path, written, recognised, separate_test=test is not None)


def _window(model: str) -> int | None:
    """Return how many tokens a model in a folder attends to; None where that is not known yet."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
        window = config.get("max_position_embeddings", config.get("n_positions"))
    except (OSError, ValueError, AttributeError):
        return None
    return window if isinstance(window, int) else None


def write_draft(path: Path, text: str) -> None:
    """Write a new file; an existing one is never overwritten."""
    if path.exists():
        raise HoflError(f"{path} exists: choose another name, or remove it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        reason = error.strerror if path.parent.is_dir() else f"{path.parent} is not a folder"
        raise HoflError(f"cannot write {path}: {reason}.") from None


def _clients(recognised: Recognised | None) -> int:
    """Return the data's own clients, or so many that each has some examples."""
    if recognised is None:
        return 12
    return recognised.clients or max(1, min(12, recognised.rows // 10))


def _toml(
    path: Path, values: dict[str, Any], recognised: Recognised | None, separate_test: bool
) -> str:
    """Write the values with a comment on each key that has one."""
    shown = os.path.relpath(path)
    lines = [
        f"# Written by hofl init. Next: hofl check {shown}",
        f"# Then: hofl run {shown} --out runs/{path.stem}",
        f"# Every key and its default: hofl config show {shown}",
    ]
    if recognised is not None:
        owners = "" if recognised.clients is None else f" of {recognised.clients:,} clients"
        lines.append(f"# The training data: {recognised.rows:,} rows{owners}; {recognised.reason}.")
    comments = dict(COMMENTS, **({"custom.test": ""} if separate_test else {}))
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    for section, table in [("", plain), *((k, v) for k, v in values.items() if k not in plain)]:
        lines += ["", f"[{section}]"] if section else [""]
        for key, value in table.items():
            inner = value.items() if section == "method" and isinstance(value, dict) else None
            pairs = [(key, value)] if inner is None else [(f"{key}.{k}", v) for k, v in inner]
            for name, setting in pairs:
                comment = comments.get(f"{section}.{name}".lstrip("."), "")
                if name == BASE:
                    comment = "paths are relative to this file"
                line = f"{name} = {toml_value(setting)}"
                lines.append(f"{line}  # {comment}" if comment else line)
    return "\n".join(lines) + "\n"
