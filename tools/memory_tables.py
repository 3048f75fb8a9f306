"""Write the numbers of docs/memory.md: ``python tools/memory_tables.py [--check]``.

Every number is read from a file: plans from ``plans.json`` (tools/plan_costs.py) and
``memory.json`` (make results), allocations from ``allocated.json`` (tools/measure_allocated.py),
resident sets from ``headroom.json`` (tools/measure_headroom.py). With --check nothing is written,
and a page that says something else ends in an error.
"""

import json
import sys
from typing import Any

from marked import ROOT, renew
from measure_headroom import least_fixed
from measure_headroom import table as resident_table
from results_parts import wrapped

from hofl.core.sizes import show_bytes
from hofl.memory.capability import MEASURED

RESULTS = ROOT / "docs" / "results"
GIB, MIB = 2**30, 2**20
ROWS = {"0": "full FO (boundary 0)", "24": "HO at 24", "28": "no FO block (28)"}
Facts = dict[str, Any]


def lines(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(
        [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        + [f"| {' | '.join(row)} |" for row in rows]
    )


def beside_the_paper(memory: Facts) -> str:
    """The paper's five figures and the planned ones; of a cohort also what is expected."""
    expected = {row["name"]: row["expected"] for row in memory["demands"]}
    rows = []
    for row in memory["beside"]:
        here, off = f"{row['here']:.2f}", f"{100 * (row['here'] / row['paper'] - 1):+.1f} %"
        name = row["what"].removeprefix("cohort, ").replace(" (beta = ", ", beta ").rstrip(")")
        mean = expected.get(name)
        if row["what"].startswith("cohort, HO-FL") and mean is not None:
            here += f" ({mean:.2f})"
            off += f" ({100 * (mean / row['paper'] - 1):+.1f} %)"
        rows.append([row["what"], f"{row['paper']:.2f}", here, off])
    return lines(("", "paper, GiB", "planned: drawn (expected), GiB", "deviation"), rows)


def allocated_table(rows: list[Facts]) -> str:
    """Predictions beside the allocator's peaks, and how far they are apart."""
    sizes = lambda values: " / ".join(f"{value / MIB:.1f}" for value in values)  # noqa: E731
    shown = [
        [
            row["model"],
            str(row["length"]),
            "of 1 block" if row["segments"] else "-",
            sizes(row["predicted"]),
            sizes(row["allocated"]),
        ]
        for row in rows
    ]
    pairs = [pair for row in rows for pair in zip(row["predicted"], row["allocated"], strict=True)]
    most = max(abs(predicted - found) for predicted, found in pairs)
    head = (
        "model",
        "length",
        "segments",
        "predicted at the four boundaries, MiB",
        "allocated, MiB",
    )
    return f"{lines(head, shown)}\n\n" + wrapped(
        f"(`python tools/measure_allocated.py`.) The largest difference of the {len(pairs)} is "
        f"{most:,} bytes: whatever workspace CPU kernels use, they do not take it from PyTorch's "
        "allocator at the peak."
    )


def resident_part(rows: list[Facts]) -> str:
    """Resident sets beside plans, and the headroom that covers them."""
    before = [
        row["loaded_bytes"] - (row["planned_bytes"] - row["working_bytes"])
        for row in rows
        if row["model"].startswith("smollm2") and row["storage"] == "float32" and not row["stream"]
    ]
    least = least_fixed(rows, MEASURED.share) / MIB
    beyond = sum(not row["within_limit"] for row in rows)
    return f"{resident_table(rows)}\n\n" + wrapped(
        f"(`python tools/measure_headroom.py`; {len(rows)} participations, {beyond} of them beyond "
        "the limit, in [`headroom.json`](results/headroom.json).) On SmolLM2-135M in FP32, "
        f"{min(before) / MIB:.0f} to {max(before) / MIB:.0f} MiB beside the weights are there "
        f"before the first step: the tokenizer and what loading leaves behind. With a share of "
        f"{MEASURED.share:g} of what a plan holds beside the frozen weights, the least fixed part "
        f"that covers every row is {least:.0f} MiB; `best` leaves "
        f"{show_bytes(MEASURED.fixed).replace('.0 ', ' ')} and that share."
    )


def executions_part(executions: dict[str, dict[str, Facts]]) -> str:
    """What each execution takes at three boundaries, and what follows."""
    head = ("", *executions["0"])
    rows = [
        [ROWS[boundary], *(f"{cost['peak'] / GIB:.2f}" for cost in costs.values())]
        for boundary, costs in executions.items()
    ]
    exact, hybrid = executions["0"]["both"], executions["24"]["plain"]
    disk = executions["24"]["both, streamed bottom"]
    return f"{lines(head, rows)}\n\n" + wrapped(
        "All give the same gradients. So with weights in memory, checkpoints and micro-batches "
        f"alone bring *exact* backpropagation to {exact['peak'] / GIB:.2f} GiB, "
        f"{exact['peak'] / hybrid['peak']:.2f} of what hybrid order at 24 takes, at "
        f"{exact['compute']:.2f} times the block passes of plain backpropagation, where hybrid "
        f"order at 24 takes {hybrid['compute']:.2f}. What hybrid order adds then is a bottom that "
        f"never runs backward: it can stay on disk ({disk['peak'] / GIB:.2f} GiB), it is read once "
        "per step, and it sends 10 scalars instead of its difference "
        f"({show_bytes(hybrid['uplink'])} of uplink at 24, {show_bytes(exact['uplink'])} in full)."
    )


def budgets_part(budgets: list[Facts], hybrid: Facts) -> str:
    """What the planner chooses for a few devices."""
    rows = [
        [
            row["budget"].replace("G", " G") + ("" if row["backward"] else ", `--no-backward`"),
            row["what"],
            f"{row['peak'] / GIB:.2f} + {row['headroom'] / GIB:.2f}",
            f"{row['compute']:.2f}",
            show_bytes(row["uplink"]),
        ]
        for row in budgets
    ]
    head = ("budget", "chosen", "peak + headroom, GiB", "compute", "uplink")
    return f"{lines(head, rows)}\n\n" + wrapped(
        f"Hybrid order at 24 takes {hybrid['peak'] / GIB:.2f} GiB there. (`python "
        "tools/plan_costs.py`, which asks what `hofl plan --json` says.)"
    )


def pages() -> dict[str, dict[str, str]]:
    """The parts of the page, from the committed files."""
    plans, memory, allocated = (
        json.loads((RESULTS / "data" / f"{name}.json").read_text())
        for name in ("plans", "memory", "allocated")
    )
    resident = json.loads((RESULTS / "headroom.json").read_text())["rows"]
    parts = {
        "paper": beside_the_paper(memory),
        "allocated": allocated_table(allocated["rows"]),
        "resident": resident_part(resident),
        "executions": executions_part(plans["executions"]),
        "budgets": budgets_part(plans["budgets"], plans["executions"]["24"]["plain"]),
    }
    return {"docs/memory.md": parts}


if __name__ == "__main__":
    renew(pages(), "memory_tables.py", "--check" in sys.argv)
