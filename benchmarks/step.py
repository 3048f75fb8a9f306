"""Time of one hybrid-order (HO) step over that of an ordinary first-order (FO) one.

In units of one block's forward pass, and with backward through a frozen block costing one more, FO
takes 2L and HO 2L + (q - 1) b: the FLOP ratio is 1 + (q - 1) b / (2L), and HO is to beat it by 5 %.
The share of the peak counts the FLOPs of the blocks' frozen matrices only, against the median
rate of plain matrix products that take their turn among the steps.

Run as a script, this measures the steps with the allocator untouched and prints the samples as
JSON; ``measure`` starts that in a process of its own, since ``tune_allocator`` cannot be undone.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from statistics import median

from harness import Cell, Subject, Timing, interleave
from step_variants import (
    BATCH,
    LENGTH,
    RULE,
    Step,
    block_flops,
    first_order_steps,
    local_step,
    make_batch,
    matmul_peak,
)

from hofl import load_model
from hofl.core.process import use_threads
from hofl.models.split import SplitModel

MODEL = "smollm2-135m-instruct"
UNTUNED = "info: {}, allocator untouched"
TARGETS = {"time_over_flops_at_most": 0.95, "of_peak_at_least": 0.7}
COLUMNS = {
    "variant": ("variant", ""),
    "median_ms": ("median ms", ".0f"),
    "min_ms": ("min ms", ".0f"),
    "ratio": ("time / FO", ".3f"),
    "flop_ratio": ("FLOP / FO", ".3f"),
    "time_over_flops": ("time ratio / FLOP ratio, target <= 0.95", ".3f"),
    "gflops": ("GFLOP/s", ".0f"),
    "of_peak": ("of peak, target >= 0.7", ".2f"),
}
Times = Mapping[str, Timing]


def measure(repeats: int) -> Subject:
    """Every variant; the caller has tuned the allocator and set the threads."""
    model, variants = _variants(with_check=True)
    variants["matmul"], peaks = matmul_peak()
    times = interleave(variants, repeats)
    untuned = _untuned(repeats)
    peak, unit, twice = median(peaks), block_flops(model), 2 * model.num_blocks

    rows = [_row("FO", times)]
    _add_flops(rows[0], twice * unit, twice * unit, peak)
    for b in _boundaries(model):
        rows.append(_row(f"HO b={b}", times))
        _add_flops(rows[-1], (twice + (RULE.q - 1) * b) * unit, twice * unit, peak)
    rows.append({"variant": "peak: matrix products, median", "gflops": peak / 1e9})
    rows.append({"variant": "info: the same, best repeat", "gflops": max(peaks) / 1e9})
    rows.append(_row("FO vocabulary", times, note="info: {}"))
    rows += [_check_row(times, b) for b in _boundaries(model)]
    rows += [_row(name, untuned, note=UNTUNED) for name in untuned]
    samples = {name: timing.samples for name, timing in times.items()}
    samples |= {UNTUNED.format(name): timing.samples for name, timing in untuned.items()}
    title = f"step: {MODEL}, batch {BATCH}, length {LENGTH}, q = {RULE.q}, FP32"
    return Subject("step", title, COLUMNS, rows, samples, TARGETS)


def _variants(with_check: bool) -> tuple[SplitModel, dict[str, Step]]:
    loaded = load_model(MODEL, device="cpu")
    model, batch = loaded.split, make_batch(loaded.split.config.vocab_size)
    variants: dict[str, Step] = {}
    variants["FO"], vocabulary = first_order_steps(loaded.reference, [batch])
    for b in _boundaries(model):
        variants[f"HO b={b}"] = local_step(model, [batch], b)
        if with_check:
            variants[f"HO b={b} step 0"] = local_step(model, [batch], b, e=0)
    if with_check:
        variants["FO vocabulary"] = vocabulary
    return model, variants


def _boundaries(model: SplitModel) -> list[int]:
    """L/4, L/2 and 3L/4, rounded down."""
    return [model.num_blocks * quarter // 4 for quarter in (1, 2, 3)]


def _row(name: str, times: Times, note: str = "{}") -> dict[str, Cell]:
    mine = times[name]
    return {
        "variant": note.format(name),
        "median_ms": 1e3 * mine.median,
        "min_ms": 1e3 * mine.best,
        "ratio": mine.median / times["FO"].median,
    }


def _add_flops(row: dict[str, Cell], flops: float, baseline: float, peak: float) -> None:
    ratio, milliseconds = row["ratio"], row["median_ms"]
    assert isinstance(ratio, float)
    assert isinstance(milliseconds, float)
    row["flop_ratio"] = flops / baseline
    row["time_over_flops"] = ratio / (flops / baseline)
    row["gflops"] = flops / (1e6 * milliseconds)
    row["of_peak"] = flops / (1e-3 * milliseconds) / peak


def _check_row(times: Times, b: int) -> dict[str, Cell]:
    """What the error check adds to step 0: the median of the differences within a repeat."""
    pairs = zip(times[f"HO b={b} step 0"].samples, times[f"HO b={b}"].samples, strict=True)
    cost = median(first - later for first, later in pairs)
    ratio = cost / times["FO"].median
    return {"variant": f"info: check, b={b}", "median_ms": 1e3 * cost, "ratio": ratio}


def _untuned(repeats: int) -> dict[str, Timing]:
    command = [sys.executable, __file__, str(repeats)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    samples = json.loads(printed.splitlines()[-1])
    return {name: Timing(tuple(values)) for name, values in samples.items()}


if __name__ == "__main__":
    use_threads(0, 1)
    timed = interleave(_variants(with_check=False)[1], int(sys.argv[1]))
    print(json.dumps({name: timing.samples for name, timing in timed.items()}))
