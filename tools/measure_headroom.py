"""How far the resident set of real participations lies above their plans: the headroom to leave.

Run: python tools/measure_headroom.py [--models stories15m,smollm2-135m-instruct] [--out FILE]

Every row is a participation in a process of its own: load the model, run E steps whose batches
differ in their lengths, as those of data do, the heaviest as planned. From the loaded model on, the
process may take no more private memory than the plan's working bytes and the stated headroom
(RLIMIT_DATA); a row that needs more is run again without the limit and says so. What counts is the
peak resident set over that before the model was loaded, when a small model of the same type has
brought the libraries' code into memory. So the tokenizer and what loading leaves behind count. All
weights are touched, as mapped ones are resident only once they are read; pages of the model's files
that no weight needs any more (a quantised copy is used) are the system's to take back, and do not.

The last lines are the least fixed part that covers every row, for several shares of the working
bytes. Rows are kept in the file, so that a second call measures what is missing.
"""

import argparse
import json
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from hofl.memory.capability import MEASURED

MIB = 2**20
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
LENGTHS = (0.6, 1.0, 0.8)
"""Of the texts of each step, over the longest."""
KEYS = ("model", "rule", "boundary", "storage", "micro_batch", "checkpoint", "stream")
"""What makes a case."""
SIZES = {"batch_size": 2, "seq_len": 128}
OUT = Path(__file__).parents[1] / "docs" / "results" / "headroom.json"


def cases(model: str, blocks: int, every: bool) -> list[dict[str, Any]]:
    """Return what is measured of a model: rule x boundary x storage x execution.

    Unless ``every`` is set, the parts of a batch follow the streaming, and other storage forms than
    the files' are measured with exact gradients in both segments alone.
    """
    middle = blocks // 2
    cut = [("exact", 0), ("exact", middle), ("exact", blocks)]
    cut += [("hybrid", middle), ("frozen", middle), ("zo", blocks)]
    storages = ("float32", "bfloat16", "q8_0", "q4_1")
    all_of_them = (
        dict(zip(KEYS, (model, *at, *how), strict=True))
        for at, *how in product(cut, storages, (0, 1), (0, 1), (False, True))
    )
    return [
        case
        for case in all_of_them
        if _possible(case, blocks) and (every or _telling(case, blocks))
    ]


def _possible(case: dict[str, Any], blocks: int) -> bool:
    """Quantised blocks stay in memory; without a bottom or a top there is nothing to cut in it."""
    if case["stream"] and (not case["boundary"] or case["storage"] in ("q8_0", "q4_1")):
        return False
    return case["boundary"] < blocks or not case["checkpoint"]


def _telling(case: dict[str, Any], blocks: int) -> bool:
    exactly = case["rule"] == "exact"
    if case["storage"] != "float32":
        return (
            exactly and 0 < case["boundary"] < blocks and case["micro_batch"] > case["checkpoint"]
        )
    rerun = not case["checkpoint"] or case["rule"] != "frozen"
    return rerun and case["micro_batch"] == int(case["stream"])


def planned(case: dict[str, Any]) -> dict[str, int]:
    """Return the plan's peak, what of it is not frozen weights, and the stated headroom."""
    from hofl.memory.plan import memory_plan
    from hofl.memory.trace import trace

    rule, execution = _rule(case["rule"]), _execution(case)
    memory = memory_plan(
        case["model"], rule, storage_dtype=case["storage"], compute_dtype="float32", **SIZES
    )
    cost = trace(memory.model, memory.workload, case["boundary"], execution)
    return {
        "planned_bytes": cost.peak_bytes,
        "working_bytes": cost.working_bytes,
        "headroom_bytes": MEASURED.of(cost),
    }


def measured(case: dict[str, Any], room: int | None) -> dict[str, Any]:
    """Run a participation in this process; ``room`` is what its steps may take."""
    import torch

    from hofl.core.process import status_bytes, tune_allocator
    from hofl.memory.live import out_of_memory
    from hofl.memory.workload import Workload
    from hofl.models.loading import load_model

    tune_allocator()  # as in a run
    torch.set_num_threads(1)
    _warm_up(case)
    start, files = _reset_peak(), _file_pages()
    model = load_model(
        case["model"], storage_dtype=case["storage"], device="cpu", stream=case["stream"]
    ).split
    model.keep(case["boundary"] if case["stream"] else 0)
    for parameter in model.module.parameters():
        parameter.detach().sum().item()  # mapped weights become resident when they are read
    unused = _file_pages() - files - _mapped(model)
    loading, loaded = (status_bytes("VmHWM") or 0) - start, (status_bytes("VmRSS") or 0) - start
    if room is not None:
        most = (status_bytes("VmData") or 0) + room
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    _reset_peak()
    rule = replace(_rule(case["rule"]), local_steps=len(LENGTHS))
    longest = SIZES["seq_len"]
    batches = [
        Workload(rule=rule, examples=((round(longest * part),),) * SIZES["batch_size"])
        for part in LENGTHS
    ]
    try:
        _participate(model, batches, case)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return {"out_of_memory": True}
    resident = (status_bytes("VmHWM") or 0) - start - max(unused, 0)
    return {"resident_bytes": resident, "loaded_bytes": loaded, "loading_bytes": loading}


def _participate(model: Any, batches: list[Any], case: dict[str, Any]) -> None:
    """Run one step on each of the batches."""
    from hofl.algorithm import client_update
    from hofl.local.step import LocalParts
    from hofl.memory.trace import placeholder_plan

    execution, boundary, rule = _execution(case), case["boundary"], batches[0].rule
    steps = ([part.batch(model.device) for part in work.parts(execution)] for work in batches)
    plan = placeholder_plan(model, rule, boundary)
    client_update(model, plan, steps, LocalParts.of(rule, boundary), execution)


def _warm_up(case: dict[str, Any]) -> None:
    """Run a small model of the same type: code is loaded and the first threads are started."""
    from hofl.memory.workload import Workload
    from hofl.models.adapters import Lora
    from hofl.models.loading import build_split, read_model_config

    config = read_model_config(case["model"])
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 64, 64
    config.num_attention_heads = config.num_key_value_heads = 2
    config.vocab_size, config.head_dim = 64, 32
    config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    small = build_split(config, None, adapter=Lora())
    batch = Workload.even(rule=replace(_rule(case["rule"]), local_steps=1), batch_size=1, seq_len=4)
    _participate(small, [batch], {**case, "boundary": min(case["boundary"], 2), "stream": False})


def _rule(name: str) -> Any:
    from hofl.core.optim import AdamW
    from hofl.rules import LocalRule
    from hofl.variants import exact, forward_only, frozen

    run = LocalRule(optimizer=AdamW(lr=1e-3), local_steps=1)
    return {"exact": exact, "frozen": frozen, "zo": forward_only}.get(name, lambda r: r)(run)


def _execution(case: dict[str, Any]) -> Any:
    from hofl.local.site import Execution

    return Execution(
        micro_batch=case["micro_batch"],
        checkpoint=case["checkpoint"],
        stream_bottom=case["stream"],
    )


def _file_pages() -> int:
    from hofl.core.process import status_bytes

    return status_bytes("RssFile") or 0


def _mapped(model: Any) -> int:
    """Return the bytes of the weights that may still be pages of a file: all but quantised ones."""
    weights = [p for p in model.module.parameters() if p.is_floating_point()]
    return sum(p.numel() * p.element_size() for p in weights)


def _reset_peak() -> int:
    """Reset the system's record of the peak resident set; return the resident set."""
    from hofl.core.process import status_bytes

    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS") or 0


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Plan a case and run it in processes of its own, under the limit and, if need be, without."""
    plan = planned(case)
    row = isolated(case, plan["working_bytes"] + plan["headroom_bytes"])
    within = "out_of_memory" not in row
    return {**case, **plan, **(row if within else isolated(case, None)), "within_limit": within}


def isolated(case: dict[str, Any], room: int | None) -> dict[str, Any]:
    """Run :func:`measured` in a process forked from one that has loaded the libraries alone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hofl.memory.profile"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        try:
            return process.submit(measured, case, room).result()
        except BrokenProcessPool:  # some libraries end the process when there is no memory
            if room is None:
                raise
            return {"out_of_memory": True}


def least_fixed(rows: list[dict[str, Any]], share: float) -> float:
    """Return the bytes beside a share of the working bytes that cover every row's resident set."""
    return max(
        row["resident_bytes"] - row["planned_bytes"] - share * row["working_bytes"] for row in rows
    )


def say(row: dict[str, Any]) -> None:
    """Print a case, its plan and what was measured."""
    sizes = ("planned_bytes", "working_bytes", "headroom_bytes", "resident_bytes", "loaded_bytes")
    shown = "  ".join(f"{key.split('_')[0]} {row[key] / MIB:.1f}" for key in sizes)
    beyond = "" if row["within_limit"] else "  BEYOND THE LIMIT"
    print(*(row[key] for key in KEYS), "|", shown + beyond, flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return what each rule took at its worst over its executions, as Markdown."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(row[key] for key in KEYS[:4]), []).append(row)
    lines = [
        "| model | rule | boundary | blocks in | plan, MiB | resident | over | headroom |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, own in kinds.items():
        worst = min(own, key=_spare)
        sizes = [worst[key] / MIB for key in ("planned_bytes", "resident_bytes")]
        numbers = (*sizes, sizes[1] - sizes[0], MEASURED.of_working(worst["working_bytes"]) / MIB)
        lines.append("| " + " | ".join((*map(str, kind), *(f"{x:.0f}" for x in numbers))) + " |")
    return "\n".join(lines)


def _spare(row: dict[str, Any]) -> float:
    """Return the bytes of the headroom that a row left."""
    room = MEASURED.of_working(row["working_bytes"])
    return room - (row["resident_bytes"] - row["planned_bytes"])


def main() -> None:
    """Measure the cases that the file lacks, then print what covers all of its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="stories15m,smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--every", action="store_true", help="the whole product of the options")
    parser.add_argument("--table", action="store_true", help="print the table of docs/memory.md")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.out.read_text())["rows"]))
        return
    from hofl.models.loading import read_model_config

    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    known = [[row[key] for key in KEYS] for row in rows]
    for model in given.models.split(","):
        for case in cases(model, read_model_config(model).num_hidden_layers, given.every):
            if [*case.values()] not in known:
                rows.append(measure(case))
                say(rows[-1])
                written = {**SIZES, "lengths": LENGTHS, "rows": rows}
                given.out.write_text(json.dumps(written, indent=1) + "\n")
    for share in SHARES:
        print(f"share {share}: least fixed part {least_fixed(rows, share) / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
