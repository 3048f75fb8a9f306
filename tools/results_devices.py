"""The page on a fleet whose devices each have their own rule. Used by make_results.py."""

from collections.abc import Iterator
from statistics import fmean

import numpy as np
from results_definitions import FROZEN, HYBRID
from results_parts import BY_NAME, HEAD, Data, interval, state_of, wrapped

from hofl.core.paired import difference
from hofl.core.sizes import show_bytes
from hofl.reporting.tables import plain_difference

PLANNED, OTHERS = "devices", "sst2-smollm2"
HYBRID_LABEL = HYBRID.replace(":", " ")
NAMES = {HYBRID_LABEL: "HO-FL (beta = 0.75)", FROZEN: "frozen bottom"}
FLEET = """SmolLM2-135M on SST-2. A third of the devices have less memory than the FP32 weights
take (462 MiB of 513), a third 1.5 times that, a third only do inference. hofl's planner gives each
its rule: exact gradients with a streamed bottom, exact gradients in micro-batches, zeroth order on
the loss itself. Differences go up in 4 bits. The methods beside it cut at L/4, L/2 and 3L/4 (FedAvg
at 0): none of them fits a device of the first third."""
COLUMNS = ("method", "seeds", "accuracy, %", "by seed", "minus FedAvg", "loss", "peak", "uplink")
Cells = dict[int, Data]
"""Finished runs of a row by seed."""


def finished_cells(data: Data, name: str, label: str) -> Cells:
    """The finished runs of a row; none where it was not run."""
    rows = [row for group in data.get(name, {}).get("groups", []) for row in group["rows"]]
    cells = [cell for row in rows if row["label"] == label for cell in row["cells"]]
    return {cell["seed"]: cell for cell in cells if cell["state"] == "finished"}


def against(mine: Cells, other: Cells) -> str:
    """Accuracy minus FedAvg's, paired by seed, in points."""
    seeds = sorted(mine.keys() & other.keys())
    if mine is other or len(seeds) < 2:
        return "-"
    first, second = (
        np.array([[100 * cells[seed]["final"]["accuracy"]] for seed in seeds])
        for cells in (mine, other)
    )
    return interval(plain_difference(difference(first, second)))


def line(name: str, cells: Cells, fedavg: Cells) -> str:
    """A row of the table: one method over its seeds."""
    if not cells:
        return f"| {name} | 0 | - | - | - | - | - | - |"
    scores = [100 * cell["final"]["accuracy"] for cell in cells.values()]
    spread = f" ({np.std(scores, ddof=1):.2f})" if len(scores) > 1 else ""
    each = " / ".join(f"{100 * cells[seed]['final']['accuracy']:.2f}" for seed in sorted(cells))
    peaks: dict[int, int] = {}
    for cell in cells.values():
        for boundary, peak in cell["peaks"].items():
            peaks[int(boundary)] = max(peak, peaks.get(int(boundary), 0))
    shown = ", ".join(f"b = {b}: {show_bytes(peaks[b])}" for b in sorted(peaks))
    uplink = show_bytes(fmean(cell["curve"][-1]["uplink"] for cell in cells.values()))
    loss = fmean(cell["final"]["loss"] for cell in cells.values())
    return (
        f"| {name} | {len(cells)} | {fmean(scores):.2f}{spread} | {each} | "
        f"{against(cells, fedavg)} | {loss:.4f} | {shown} | {uplink} |"
    )


def sections(data: Data) -> Iterator[str]:
    """Commands, what the devices are, the table."""
    yield "# Three kinds of devices, each by its own rule\n"
    yield HEAD + "\n"
    yield wrapped(FLEET) + "\n"
    for name in (PLANNED, OTHERS):
        yield f"```\n{BY_NAME[name].command()}\n```\n"
    if PLANNED not in data:
        yield "Not run yet.\n"
        return
    made = ", ".join(
        f"{shown} at {data[name]['made_with']['git']}"
        for name, shown in ((PLANNED, "hofl"), (OTHERS, "the others"))
        if name in data
    )
    yield (
        wrapped(
            f"{state_of(data, BY_NAME[PLANNED])} by plan ({made}). Differences are in points of "
            "accuracy, peaks of a client by its boundary b."
        )
        + "\n"
    )
    fedavg = finished_cells(data, OTHERS, "fedavg")
    yield f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
    yield line("hofl's plan", finished_cells(data, PLANNED, HYBRID_LABEL), fedavg)
    yield line("FedAvg", fedavg, fedavg)
    for label, shown in NAMES.items():
        yield line(shown, finished_cells(data, OTHERS, label), fedavg)
    yield ""


def devices(data: Data) -> str:
    """The whole page."""
    return "\n".join(sections(data))
