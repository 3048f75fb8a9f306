"""The faults that the network tests inject, what became of them, and how long it took.

Run: python tools/measure_faults.py

Runs the tests named below (real servers and devices on 127.0.0.1; kill -9 and SIGSTOP at stated
places), which also check that nothing wrong was averaged, and prints their table in Markdown.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = tuple(f"tests/deploy/test_{name}.py" for name in ("network", "guarded_fleet", "stalls"))


def table(lines: list[str]) -> str:
    """One row per injected fault."""
    rows = ["| kill -9 (or SIGSTOP) of | outcome | recovered after |", "|---|---|---|"]
    rows += [
        f"| {fault} | {outcome} | {seconds} s |"
        for fault, outcome, seconds in map(json.loads, lines)
    ]
    return "\n".join(rows)


def main() -> int:
    """Run the tests and print what they noted."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "faults"
        notes.touch()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "network", *TESTS],
            cwd=ROOT,
            env={**os.environ, "HOFL_FAULTS": str(notes)},
            check=False,
        )
        print(table(notes.read_text().splitlines()))
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
