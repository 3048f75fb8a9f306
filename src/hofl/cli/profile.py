"""``hofl profile``: the planner's prediction beside what a real participation needs."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hofl.cli import interrupts
from hofl.cli.display import say
from hofl.cli.options import AsJson, whole_numbers
from hofl.core.errors import HoflError
from hofl.core.sizes import show_bytes

EXAMPLES = {
    "profile": (
        "hofl profile --model smollm2-135m-instruct --boundaries 0,8,15,22",
        "hofl profile --model facebook/opt-125m --weights random --boundaries 0,6",
    )
}


def profile(
    model: Annotated[str, typer.Option(help="Built-in model, folder or hub id.")],
    boundaries: Annotated[str, typer.Option(help="Where to measure, separated by commas.")] = "0",
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 4,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 128,
    micro_batch: Annotated[int, typer.Option(min=0, help="Examples at a time; 0 is all.")] = 0,
    micro_tokens: Annotated[int, typer.Option(min=0, help="Tokens at a time; 0 is all.")] = 0,
    checkpoint: Annotated[
        int, typer.Option(min=0, help="Blocks per checkpointed segment; 0 keeps all activations.")
    ] = 0,
    stream_bottom: Annotated[
        bool,
        typer.Option("--stream-bottom", help="Read the bottom's weights from the model's files."),
    ] = False,
    method_name: Annotated[
        str, typer.Option("--method", help="Whose local step (hofl methods).")
    ] = "hofl",
    local_steps: Annotated[int | None, typer.Option(min=1, help="E.")] = None,
    q: Annotated[int | None, typer.Option(help="Directions per step.")] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the LoRA adapter.")] = 8,
    weights: Annotated[str, typer.Option(help="pretrained or random.")] = "pretrained",
    storage_dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "float32",
    compute_dtype: Annotated[str, typer.Option(help="Of the activations.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    runs: Annotated[int, typer.Option(min=1, help="Isolated runs; the largest counts.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure the peak memory of whole participations, each in a process of its own.

    Allocated is the count of PyTorch's allocator (of the GPU where there is one); resident is the
    process's peak resident set over its baseline, plus the model.
    """
    if weights not in ("pretrained", "random"):
        raise HoflError(f"--weights {weights!r}: choose pretrained or random.")
    from hofl.local.site import Execution  # takes seconds
    from hofl.memory.plan import memory_plan
    from hofl.memory.profile import Subject, measure
    from hofl.memory.trace import trace
    from hofl.methods import method

    interrupts.check()
    changes = {"q": q, "local_steps": local_steps}
    chosen = method(method_name, **{k: v for k, v in changes.items() if v is not None})
    shape = {"rank": rank, "storage_dtype": storage_dtype, "compute_dtype": compute_dtype}
    sizes = {"batch_size": batch_size, "seq_len": seq_len}
    plan = memory_plan(model, chosen.local, **sizes, **shape)  # type: ignore[arg-type]
    subject = Subject(name=model, weights=weights, device=device, **shape)  # type: ignore[arg-type]
    execution = Execution(
        micro_batch=micro_batch,
        micro_tokens=micro_tokens,
        checkpoint=checkpoint,
        stream_bottom=stream_bottom,
    )
    rows = []
    for boundary in whole_numbers("--boundaries", boundaries, plan.model.num_blocks):
        cost = trace(plan.model, plan.workload, boundary, execution)
        measured = measure(subject, plan.workload, boundary, execution, runs=runs)
        rows.append(
            {
                "boundary": boundary,
                "predicted_bytes": cost.peak_bytes,
                "allocated_bytes": measured.allocated,
                "resident_bytes": measured.resident,
                "weight_bytes": cost.items["weights"],
            }
        )
    if as_json:
        typer.echo(json.dumps({"model": model, **sizes, **shape, "measured": rows}))
        return
    console = Console()
    console.print(_table(rows))
    if any(row["resident_bytes"] is None for row in rows):
        reason = "resident was not measured: it needs a CPU and a writable /proc/self/clear_refs"
        say(console, reason)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("boundary", "predicted", "allocated", "ratio", "without weights", "resident"):
        table.add_column(column, justify="right")
    for row in rows:
        predicted, allocated, weights = (
            row["predicted_bytes"],
            row["allocated_bytes"],
            row["weight_bytes"],
        )
        table.add_row(
            str(row["boundary"]),
            show_bytes(predicted),
            show_bytes(allocated),
            f"{predicted / allocated:.3f}",
            f"{(predicted - weights) / (allocated - weights):.3f}",
            show_bytes(row["resident_bytes"]) if row["resident_bytes"] else "-",
        )
    return table
