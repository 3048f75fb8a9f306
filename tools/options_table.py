"""Write the numbers of docs/memory-options.md: ``python tools/options_table.py [--check]``.

Peaks, passes and uplinks are plans (tools/plan_costs.py), times those of ``benchmarks/options.py``,
the noise of rounding that of tools/measure_rounding.py, the trained rows those of make results.
With --check nothing is written, and a page that says something else ends in an error.
"""

import json
import sys
from typing import Any

from marked import ROOT, renew
from memory_tables import MIB, lines
from results_parts import interval, wrapped

DATA = ROOT / "docs" / "results" / "data"
HEAD = ("step", "peak, MiB", "of it beside the weights", "block passes", "time / FO", "uplink, KiB")
EXACT = "recompute uplink_bits=4"
Facts = dict[str, Any]


def options_part(planned: list[Facts], timed: Facts) -> str:
    """Every option: planned memory, passes and bytes, and the time that was measured."""
    times = {row["variant"]: row for row in timed["rows"]}
    rows = [
        [
            row["name"],
            f"{row['peak'] / MIB:.0f}",
            f"{(row['peak'] - row['weights']) / MIB:.0f}",
            str(row["passes"]),
            f"{times[row['name']]['ratio']:.2f}",
            f"{row['uplink'] / 1024:.1f}",
        ]
        for row in planned
    ]
    fo, best = times["FO"], min(row["min_ms"] for row in timed["rows"] if row["variant"] == "FO")
    off = [abs(row["peak"] / MIB / times[row["name"]]["peak_mib"] - 1) for row in planned]
    minima = [
        f"{name} {times[name]['min_ms'] / best:.2f} instead of {times[name]['ratio']:.2f}"
        for name in ("HO b=22", "ZO")
    ]
    return f"{lines(HEAD, rows)}\n\n" + wrapped(
        "Peaks, passes and uplinks are planned (`python tools/plan_costs.py`); the peaks that the "
        f"benchmark measured when it was timed differ by at most {100 * max(off):.1f} %. Block "
        "passes count one block over the whole batch, forward or backward (through frozen weights "
        "a backward pass costs about a forward one). Time is that of a step over FO's "
        f"{fo['median_ms'] / 1000:.2f} s, by medians of {timed['repeats']} interleaved repeats on "
        f"{timed['environment']['cores']} cores with a load of "
        f"{timed['environment']['load_average_at_start']:.1f} at the start, one record; every "
        "sample is in [`benchmarks/results.json`](../benchmarks/results.json). Repeats differ by a "
        f"tenth, so do the ratios: by minima {' and '.join(minima)}."
    )


def costs_part(planned: list[Facts], timed: Facts) -> str:
    """What each option costs in time, in a sentence each."""
    ratio = {row["variant"]: row["ratio"] for row in timed["rows"]}
    passes = {row["name"]: row["passes"] / planned[0]["passes"] for row in planned}

    def span(values: list[float], digits: int = 2) -> str:
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    segments = [name for name in ratio if name.startswith("FO, segments")]
    hybrid = ["HO b=7", "HO b=15", "HO b=22"]
    both = [f"{name}, segments of 2" for name in hybrid]
    small = "micro-batches of 4, "
    parts = [
        ratio[f"{name}, {small}segments of 2"] / ratio[f"{name}, segments of 2"]
        for name in ("FO", "HO b=22")
    ]
    streamed = [
        ratio[f"{name}, streamed"] / ratio[name]
        for name in ("HO b=22, segments of 2", f"HO b=22, {small}segments of 2", "ZO")
    ]
    forms = [ratio[f"HO b=22, blocks in {form}"] / ratio["HO b=22"] for form in ("q8_0", "q4_1")]
    return wrapped(
        f"In time, then: checkpoints {span([ratio[n] for n in segments])} times FO (passes say "
        f"{span([passes[n] for n in segments])}), hybrid order {span([ratio[n] for n in hybrid])} "
        f"(passes {span([passes[n] for n in hybrid])}), both {span([ratio[n] for n in both])}. "
        f"Micro-batches of 4 rows take {ratio['FO, micro-batches of 4']:.2f} times FO, on top of "
        f"checkpoints {span(parts)} times as long: their matrix products are small. Streaming the "
        f"bottom from a file in the page cache takes {span(streamed)} times as long; a cold disk "
        f"would add its reading time. Blocks in q8_0 or q4_1 take {span(forms)} times as long as "
        "FP32 ones: no cost that these repeats can show."
    )


def rounding_part(found: dict[str, Facts]) -> str:
    """The noise of rounding, by model."""
    names = {"stories15m": "stories15M", "smollm2-135m-instruct": "SmolLM2-135M"}
    shown = [name for name in names if name in found]
    first = found[shown[0]]
    rows = [
        [bits, f"1/{1 / first[bits]['size']:.1f}"]
        + [" - ".join(f"{value:.2g}" for value in found[name][bits]["noise"]) for name in shown]
        for bits in ("8", "4", "2", "1")
    ]
    head = ("bits", "values of the upload", *(names[name] for name in shown))
    commands = "; ".join(f"`{found[name]['command']}`" for name in shown)
    two, four = (sum(first[bits]["noise"]) for bits in ("2", "4"))
    return f"{lines(head, rows)}\n\n" + wrapped(
        f"({commands}.) From 4 bits to 2 the noise grows by a factor of {two / four:.0f}."
    )


def trained_part(data: Facts) -> str:
    """Four bits against 32, trained: exact bottoms beside FedAvg, which computes the same."""
    rows = {row["label"]: row for row in data["groups"][0]["rows"]}
    pair = rows[EXACT]["against"]["fedavg"]
    seeds = rows[EXACT]["measures"]["loss"]["seeds"]
    share = rows[EXACT]["measures"]["uplink"]["mean"] / rows["fedavg"]["measures"]["uplink"]["mean"]
    spread = rows["fedavg"]["measures"]["loss"]["deviation"]
    unseen = all(pair[key]["low"] <= 0 <= pair[key]["high"] for key in ("loss", "score"))
    said = "cost nothing that can be seen" if unseen else "make a difference"
    return wrapped(
        f"**4 bits {said}**: exact bottoms with 4 bits against FedAvg, whose "
        f"gradients are the same and whose uplink has 32, over {seeds} seeds of stories15M on "
        f"SST-2: {interval(pair['loss'], 1, 4)} of test loss and {interval(pair['score'], 100)} "
        "points of accuracy (95 % intervals, paired by seed; the deviation of FedAvg's loss "
        f"between seeds is {spread:.4f}), at {share:.3f} of the uplink "
        "([all rows](results/sst2.md))."
    )


def pages() -> dict[str, dict[str, str]]:
    """The parts of the page, from the committed files."""
    plans, rounding, trained = (
        json.loads((DATA / f"{name}.json").read_text())
        for name in ("plans", "rounding", "sst2-stories15m")
    )
    timed = json.loads((ROOT / "benchmarks" / "results.json").read_text())["options"]
    parts = {
        "options": options_part(plans["options"], timed),
        "times": costs_part(plans["options"], timed),
        "rounding": rounding_part(rounding),
        "trained": trained_part(trained),
    }
    return {"docs/memory-options.md": parts}


if __name__ == "__main__":
    renew(pages(), "options_table.py", "--check" in sys.argv)
