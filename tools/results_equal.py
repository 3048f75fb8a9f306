"""Methods at equal cost: at the uplink, at the compute and within the memory of one of them.

A run that spent less than the limit ends before it, which is said; a score before a run's end is of
a fixed part of the test set, and marked. Memory is compared device by device: a tier of devices has
what the reference took there, and a method that takes more anywhere cannot be run by all devices.
"""

from collections.abc import Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

Data = dict[str, Any]
PART = "†"
SLACK = 1.01
"""Headers and cohorts make counts of bytes and passes of equal work differ a little."""
TIGHT = 1.001
"""Peaks of equal work do not."""


def spread_of(scores: list[float]) -> str:
    """Mean and sample deviation, in percent."""
    mean = f"{100 * fmean(scores):.2f}"
    return f"{mean} ({100 * stdev(scores):.2f})" if len(scores) > 1 else mean


def at_equal(group: Data, key: str, reference: Data) -> Iterator[tuple[str, str]]:
    """Each row's score at the last evaluated round within the bytes or block passes of another.

    A seed's limit is what the reference spent in that seed: cohorts differ between seeds, and with
    them costs.
    """
    spent = {c["seed"]: c["curve"][-1][key] for c in finished_cells(reference)}
    for row in group["rows"]:
        pairs = [(c["curve"], spent[c["seed"]]) for c in finished_cells(row) if c["seed"] in spent]
        reached = [
            (curve, [p for p in curve if p[key] is not None and p[key] <= SLACK * limit], limit)
            for curve, limit in pairs
        ]
        ends = [(curve[-1], points[-1], limit) for curve, points, limit in reached if points]
        if not ends:
            yield row["label"], "-"
            continue
        text = spread_of([point["accuracy"] for _, point, _ in ends])
        number = round(fmean(point["round"] for _, point, _ in ends))
        if all(last is point for last, point, _ in ends):
            share = fmean(last[key] / limit for last, _, limit in ends)
            yield (
                row["label"],
                f"{text}, end" + (f" at {100 * share:.0f} %" if share < 0.95 else ""),
            )
        else:
            yield row["label"], f"{text}{PART}, round {number}"


def finished_cells(row: Data) -> list[Data]:
    """The finished runs of a row."""
    return [cell for cell in row["cells"] if cell["state"] == "finished"]


def peaks_of(row: Data) -> dict[int, int]:
    """Largest measured peak over the finished seeds, by boundary."""
    largest: dict[int, int] = {}
    for cell in row["cells"]:
        for boundary, peak in cell.get("peaks", {}).items():
            largest[int(boundary)] = max(peak, largest.get(int(boundary), 0))
    return largest


def fitting(mine: Mapping[int, int], limits: Mapping[int, int]) -> int:
    """On how many tiers a method fits, of which each has what the reference took there.

    A method that cuts devices as the reference does is compared tier by tier. Another one takes
    the same on all devices: its largest peak must fit.
    """
    if mine.keys() == limits.keys():
        return sum(mine[boundary] <= TIGHT * limits[boundary] for boundary in limits)
    return sum(max(mine.values()) <= TIGHT * limit for limit in limits.values())


def within_memory(row: Data, leaner: Data | None, limits: Mapping[int, int]) -> str:
    """The score of a method within the reference's memory, by leaner execution if it must be."""
    for candidate, how in ((row, ""), (leaner, ", blocks run again")):
        mine = peaks_of(candidate) if candidate else {}
        scores = [c["final"]["accuracy"] for c in candidate["cells"] if c["final"]] if mine else []
        if mine and scores and fitting(mine, limits) == len(limits):
            return spread_of(scores) + how
    mine = peaks_of(row)
    if not mine:
        return "-"
    times = max(mine.values()) / min(limits.values())
    if mine.keys() == limits.keys():
        times = max(mine[boundary] / limits[boundary] for boundary in limits)
    fits = fitting(mine, limits)
    return f"does not fit: {fits} of {len(limits)} tiers, {times:.2f} times the memory"


def equal_table(group: Data, lean: Data | None, reference: str, title: str) -> Iterator[str]:
    """All rows at the uplink, at the compute and within the memory of a reference row.

    Args:
        group: comparable rows.
        lean: rows of the same labels that run their blocks again, in less memory; or None.
        reference: label of the row whose costs are the limits.
        title: of that row, for people.
    """
    mine = next((row for row in group["rows"] if row["label"] == reference), None)
    if mine is None or "uplink" not in mine["measures"]:
        yield f"Not available: {title} is not finished."
        return
    columns = [dict(at_equal(group, key, mine)) for key in ("uplink", "passes")]
    limits = peaks_of(mine)
    leaner = {row["label"]: row for row in (lean or {"rows": []})["rows"]}
    yield f"| method | at {title}'s uplink, % | at its compute, % | within its memory, % |"
    yield "|---|---|---|---|"
    for row in group["rows"]:
        label = row["label"]
        memory = within_memory(row, leaner.get(label), limits) if limits else "-"
        yield f"| {label} | {columns[0][label]} | {columns[1][label]} | {memory} |"
