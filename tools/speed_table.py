"""Write the table of docs/speed.md from the benchmarks: ``python tools/speed_table.py [--check]``.

Every figure is read from ``benchmarks/results.json`` or ``benchmarks/peers.json``; what was not
measured has no row. A second table says how often, and on what, each subject was measured: they
need not share a machine or a number of threads. With --check, nothing is written, and a table that
is not what the files say ends in an error.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
START, END = "<!-- speed: python tools/speed_table.py -->", "<!-- end of speed -->"
Row = dict[str, Any]


def table(results: dict[str, Any], peers: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = ["| what | by medians | by minima | target |", "|---|---|---|---|"]
    lines += (
        f"| {what} | {medians} | {minima} | {target} |"
        for what, medians, minima, target in (
            *real_batches(rows_of(results, "real-batches")),
            *race(peers.get("rows", [])),
            *evaluation(rows_of(results, "evaluation")),
            *equal_lengths(rows_of(results, "step")),
        )
    )
    return "\n".join(lines)


def conditions(results: dict[str, Any], peers: dict[str, Any]) -> str:
    """How each subject of the table was measured, in Markdown."""
    measured = {
        "steps on real batches": results.get("real-batches", {}),
        "rounds": {**peers, "repeats": repeats_of(peers.get("rows", []))},
        "evaluation": results.get("evaluation", {}),
        "steps at equal lengths": results.get("step", {}),
    }
    lines = ["| rows on | repeats | threads | cores | instructions |", "|---|---|---|---|---|"]
    for what, subject in measured.items():
        if subject.get("rows"):
            machine = subject["environment"]
            facts = (machine[key] for key in ("threads", "cores", "cpu_capability"))
            lines.append(f"| {' | '.join(map(str, (what, subject['repeats'], *facts)))} |")
    return "\n".join(lines)


def repeats_of(rows: list[Row]) -> int:
    """Rounds of each contender that finished; the fewest."""
    return min((len(row["samples_in_seconds"]) for row in rows if "failed" not in row), default=0)


def rows_of(results: dict[str, Any], subject: str) -> list[Row]:
    """The rows of a subject that was measured."""
    return results.get(subject, {}).get("rows", [])


def real_batches(rows: list[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Steps on real batches; SST-2 and BoolQ in one line."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    written = {row["task"]: row for row in rows if row["variant"].startswith("DeComFL as")}
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if row["target"] is not None:
            by_name.setdefault(row["variant"], []).append(row)
    for name, mine in by_name.items():
        yield (
            f"{name} step / plain PEFT step on padded batches, {' / '.join(tasks)}",
            " / ".join(f"{row['ratio']:.2f}" for row in mine),
            " / ".join(f"{row['min_ratio']:.2f}" for row in mine),
            f"{mine[0]['target']:.2f}",
        )
    ours = [row for row in rows if row["variant"] == "DeComFL in hofl"]
    if not ours:
        return
    yield (
        f"DeComFL step / as its paper writes it, on padded batches, {' / '.join(tasks)}",
        " / ".join(f"{row['median_ms'] / written[row['task']]['median_ms']:.2f}" for row in ours),
        " / ".join(f"{row['min_ms'] / written[row['task']]['min_ms']:.2f}" for row in ours),
        "",
    )


def race(rows: list[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Whole rounds."""
    seconds = {row["variant"]: row for row in rows if "median_seconds" in row}
    others = [name for name in seconds if name != "hofl"]
    for name in others:
        pair = seconds["hofl"], seconds[name]
        medians = pair[0]["median_seconds"] / pair[1]["median_seconds"]
        minima = pair[0]["min_seconds"] / pair[1]["min_seconds"]
        target = "0.60" if name in ("plain", "flower") else ""
        yield f"FedAvg round of hofl / of {name}", f"{medians:.2f}", f"{minima:.2f}", target
    for name in others:
        peak = seconds["hofl"]["peak_bytes"] / seconds[name]["peak_bytes"]
        yield f"peak memory of that round, hofl / {name}", f"{peak:.2f}", "", "1.00"
    if "plain" in others:
        sent = seconds["hofl"]["uplink_bytes"] / seconds["plain"]["uplink_bytes"]
        yield "bytes uploaded in that round, hofl / plain", f"{sent:.2f}", "", ""
    for row in rows:
        if "failed" in row:
            yield f"FedAvg round of {row['variant']}", row["failed"], "", ""


def evaluation(rows: list[Row]) -> Iterator[tuple[str, str, str, str]]:
    """How many times as fast, and of what limit."""
    slow = {row["task"]: row for row in rows if "limit" not in row}
    for row in rows:
        if "limit" in row:
            minima = slow[row["task"]]["min_ms"] / row["min_ms"]
            yield (
                f"evaluation on {row['task']}: times as fast as whole head and padding",
                f"{row['times_as_fast']:.2f}",
                f"{minima:.2f}",
                f"{0.9 * row['limit']:.2f} (90 % of the limit)",
            )


def equal_lengths(rows: list[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Where there is no padding to save."""
    counted = {row["variant"]: row for row in rows if "flop_ratio" in row}
    plain = counted.pop("FO", {})
    for name, row in counted.items():
        yield (
            f"{name} of 30 at equal lengths (FLOP ratio {row['flop_ratio']:.2f})",
            f"{row['ratio']:.2f}",
            f"{row['min_ms'] / plain['min_ms']:.2f}",
            f"{0.95 * row['flop_ratio']:.2f}",
        )
    for name, row in counted.items():
        yield f"share of the rate of matrix products, {name} of 30", f"{row['of_peak']:.2f}", "", ""


def main() -> None:
    """Replace the table, or compare it."""
    files = (ROOT / "benchmarks" / name for name in ("results.json", "peers.json"))
    data = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    new = f"{table(*data)}\n\n{conditions(*data)}"
    page = ROOT / "docs" / "speed.md"
    text = page.read_text()
    if not text.count(START) == text.count(END) == 1:
        sys.exit(f"docs/speed.md: the table stands between {START} and {END}, each once; add them.")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    fresh = f"{before}{START}\n{new}\n{END}{after}"
    if "--check" in sys.argv:
        if fresh != text:
            sys.exit("docs/speed.md: the table is not what the JSON files say; run this tool.")
        return
    page.write_text(fresh)


if __name__ == "__main__":
    main()
