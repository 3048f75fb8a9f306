"""Tables of finished runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.table import Table

from hofl.cli.progress import size
from hofl.evaluation.headline import headline


def summary_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """One line per run: score before and after, memory of a client, bytes, training time."""
    table = Table(title=None)
    table.add_column("method", no_wrap=True)
    for column in ("before", "after", "peak memory", "uplink", "downlink", "time"):
        table.add_column(column, justify="right")
    for row in summaries:
        table.add_row(
            row["method"],
            f"{100 * headline(row['initial'])[1]:.1f} %",
            f"{100 * headline(row['final'])[1]:.1f} %",
            _range(row["peak_by_boundary"].values()),
            size(row["uplink_bytes"]),
            size(row["downlink_bytes"]),
            f"{row['seconds']:.0f} s",
        )
    return table


def _range(sizes: Collection[int]) -> str:
    """From the smallest to the largest device, as they were measured."""
    if not sizes:
        return "-"
    least, most = size(min(sizes)), size(max(sizes))
    if least == most:
        return most
    # One unit for both where they share it: 579.8 - 670.7 MiB.
    value, unit = least.split()
    return f"{value if most.endswith(unit) else least} - {most}"


def wire_line(wire: Mapping[str, int]) -> str:
    """What crossed the network, against what the algorithm wanted to send."""
    count = Counter(wire)
    own, sent = count["plan"] + count["upload"], count["down"] + count["up"]
    more = f", {100 * (sent - own) / own:.2f} % more than plans and uploads" if own else ""
    text = f"messages: {size(count['down'])} down, {size(count['up'])} up{more}"
    if count["http_down"]:
        down, up = size(count["http_down"]), size(count["http_up"])
        text += f"; with polls and heartbeats {down} down, {up} up"
    return text
