"""Write the README's table from the demo's runs: ``python tools/demo_table.py [--check]``.

``runs/demo``, which ``make demo`` makes, is read into ``docs/results/data/demo.json``; the table is
written from that file alone, so it can be checked without the runs. With --check nothing is
written, and a table that is not what the file says ends in an error.
"""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hofl.cli.display import size_range
from hofl.cli.run import DEMO
from hofl.core.sizes import show_bytes
from hofl.experiment.records import headline
from hofl.reporting.cells import Cell, read_cell

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "data" / "demo.json"
START, END = "<!-- demo: python tools/demo_table.py -->", "<!-- end of demo -->"
MADE_WITH = ("git", "cores", "python")
Facts = dict[str, Any]


def collected(folder: Path) -> Facts:
    """The runs of the demo in a few numbers.

    Raises:
        SystemExit: a run is missing or not finished.
    """
    cells = {name: read_cell(folder / name) for name in DEMO}
    missing = [f"{name} ({cell.state})" for name, cell in cells.items() if cell.summary is None]
    if missing:
        sys.exit(f"{folder}: {', '.join(missing)}: finish it with make demo.")
    first = next(iter(cells.values()))
    return {
        "made_with": {key: first.environment.get(key) for key in MADE_WITH},
        "rows": [row_of(name, cell) for name, cell in cells.items()],
    }


def row_of(name: str, cell: Cell) -> Facts:
    """A run: scores before and after, peaks of its devices, bytes."""
    assert cell.summary is not None
    summary = cell.summary
    return {
        "name": name,
        "beta": cell.config.get("method.policy.beta"),
        "before": headline(summary.initial)[1],
        "after": headline(summary.final)[1],
        "peaks": sorted(summary.peak_by_boundary.values()),
        "uplink": summary.uplink_bytes,
        "downlink": summary.downlink_bytes,
    }


TITLES = {
    "plan": "hofl's plan",
    "fedavg": "FedAvg",
    "hofl": "HO-FL (beta {beta:g})",
    "frozen-bottom": "frozen bottom",
}


def table(facts: Facts) -> Iterator[str]:
    """The table, and where its numbers come from."""
    yield "| method | before | after | client peak memory | uplink | downlink |"
    yield "|---|---|---|---|---|---|"
    for row in facts["rows"]:
        cells = [
            TITLES[row["name"]].format(beta=row["beta"] or 0),
            f"{100 * row['before']:.1f} %",
            f"{100 * row['after']:.1f} %",
            size_range(row["peaks"]),
            show_bytes(row["uplink"]),
            show_bytes(row["downlink"]),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    made = facts["made_with"]
    origin = f"hofl at {made['git']}, {made['cores']} CPU cores, Python {made['python']}"
    yield textwrap.fill(
        f"(`make demo`, then `python tools/demo_table.py`; {origin}. Memory is that of the "
        "smallest and the largest device, most of it the FP32 weights.)",
        110,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    """Read the runs where they are, and replace the table; or compare it."""
    check, runs = "--check" in sys.argv, ROOT / "runs" / "demo"
    if not check and runs.is_dir():
        DATA.write_text(json.dumps(collected(runs), indent=1) + "\n")
    page = ROOT / "README.md"
    text = page.read_text()
    if not text.count(START) == text.count(END) == 1:
        sys.exit(f"README.md: the table stands between {START} and {END}, each once; add them.")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    new = "\n".join(table(json.loads(DATA.read_text())))
    fresh = f"{before}{START}\n\n{new}\n\n{END}{after}"
    if check and fresh != text:
        sys.exit("README.md: the demo's table is not what docs/results/data/demo.json says.")
    if not check:
        page.write_text(fresh)


if __name__ == "__main__":
    main()
