"""``hofl plan``: what a local step will need at every boundary, without running it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hofl.cli.plan_view import describe, itemised, plan_panels, show
from hofl.methods import method
from hofl.planning.sizes import show_bytes
from hofl.report.panels import write_panels

EXAMPLE = """Examples:

`hofl plan --model Qwen/Qwen2.5-1.5B --batch-size 16 --seq-len 1024 --budget 12GiB`

`hofl plan --model smollm2-135m-instruct --storage-dtype float32 --strategy best --budget 1GiB`
"""


def plan(
    model: Annotated[
        str, typer.Option(help="Built-in model, folder or hub id; only its configuration is read.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="B, examples per step.")] = 16,
    seq_len: Annotated[int, typer.Option(min=2, help="T, tokens per example.")] = 1024,
    budget: Annotated[str | None, typer.Option(help="Memory of a device: 12GiB, or free.")] = None,
    strategy: Annotated[
        str, typer.Option(help="paper: plain steps only; best: all options are weighed.")
    ] = "paper",
    method_name: Annotated[
        str, typer.Option("--method", help="Whose local step (hofl methods).")
    ] = "hofl",
    q: Annotated[int | None, typer.Option(help="Directions per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or sgd.")] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the LoRA adapter.")] = 8,
    storage_dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "bfloat16",
    compute_dtype: Annotated[str, typer.Option(help="Of the activations.")] = "bfloat16",
    answer_tokens: Annotated[
        int, typer.Option(help="Tokens to predict per example; 0 is one label word.")
    ] = 0,
    plot: Annotated[Path | None, typer.Option(help="Figure: .html, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Predict peak memory, uplink and compute at every boundary, and choose one for a budget.

    The client's own step runs on tensors without data: no weights and no GPU are needed. The
    defaults are the paper's setting, a BF16 backbone and BF16 activations under an FP32 adapter.
    """
    from hofl.planning.available import budget_bytes  # the model libraries take seconds to load
    from hofl.planning.budget import check_strategy
    from hofl.planning.plan import memory_plan

    check_strategy(strategy)
    limit = None if budget is None else budget_bytes(budget)
    changes = {"q": q, "optimizer": optimizer}
    memory = memory_plan(
        model,
        method(method_name, **{k: v for k, v in changes.items() if v is not None}).local,
        batch_size=batch_size,
        seq_len=seq_len,
        answer_tokens=answer_tokens,
        rank=rank,
        storage_dtype=storage_dtype,
        compute_dtype=compute_dtype,
    )
    chosen = None if limit is None else memory.choose(limit, strategy)
    if plot is not None:
        write_panels(plan_panels(memory, strategy, limit, chosen), plot)
    if as_json:
        typer.echo(json.dumps(memory.facts(model, chosen)))
        return
    console = Console()
    show(console, memory, strategy)
    if plot is not None:
        console.print(f"figure: {plot}", highlight=False, soft_wrap=True)
    if limit is not None:
        fitting = chosen or memory.fitting(limit, strategy)
        for line in (f"{show_bytes(limit)}: {describe(fitting)}", itemised(fitting)):
            console.print(line, highlight=False, soft_wrap=True)
