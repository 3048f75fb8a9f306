"""How a batch is cut into parts: by rows, or by tokens where texts differ in length."""

from dataclasses import replace
from typing import Any

from hofl.local.site import Execution
from hofl.memory.workload import Workload


def most_rows(work: Workload) -> int:
    """Return how many rows of the longest example have at least the tokens of the batch."""
    return -(-work.tokens // _longest(work))


def in_parts(work: Workload, rows: int, asked: Execution) -> Execution:
    """Return an execution in parts of so many rows, or of as many tokens as these have.

    Tokens where texts differ in length: a part is then as heavy, and short texts fill it up.

    Args:
        work: a batch.
        rows: of the longest example, in a part.
        asked: parts are no larger than the configuration asks for.
    """
    if rows >= most_rows(work):
        return bounded(Execution(), asked)
    if work.tokens == _longest(work) * work.batch_size:
        count = -(-work.batch_size // rows)
        return bounded(Execution(micro_batch=-(-work.batch_size // count)), asked)
    return bounded(Execution(micro_tokens=rows * _longest(work)), asked)


def bounded(execution: Execution, asked: Execution) -> Execution:
    """Return the execution with parts no larger than the configuration asks for."""
    limits, bounds = cut_of(asked), cut_of(execution)
    for name, size in bounds.items():
        bounds[name] = min(filter(None, (size, limits[name])), default=0)
    return replace(execution, **bounds)


def cut_of(execution: Execution) -> dict[str, Any]:
    """Return how an execution cuts its batches."""
    return {"micro_batch": execution.micro_batch, "micro_tokens": execution.micro_tokens}


def _longest(work: Workload) -> int:
    return max(map(sum, work.examples))
