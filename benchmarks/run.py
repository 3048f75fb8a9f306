"""All benchmarks: ``python benchmarks/run.py [--out FILE.json] [--repeats 7] [--only SUBJECT]``.

Prints one table per subject and writes every figure, with the machine it was taken on, as JSON.
Takes a few minutes; nothing else should run on the machine meanwhile. Targets are printed beside
the figures, never asserted.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import directions
import evaluation
import options
import replay
import step
from harness import environment
from rich.console import Console

from hofl.process import tune_allocator, use_threads

SUBJECTS = {
    "step": step.measure,
    "replay": replay.measure,
    "directions": directions.measure,
    "evaluation": evaluation.measure,
    "options": options.measure,
}
BUSY = 0.5  # load average
DEFAULT_OUT = Path(__file__).parent / "results.json"


def main() -> None:
    """Run the subjects one after the other."""
    parser = argparse.ArgumentParser(description="Benchmarks of hofl.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=7, help="samples per variant (default 7)")
    parser.add_argument("--only", choices=SUBJECTS, help="this subject alone; name an --out too")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    if arguments.only and arguments.out == DEFAULT_OUT:
        parser.error("--only would overwrite the figures of the other subjects: give --out")

    tune_allocator()
    use_threads(0, 1)
    console = Console(width=None if sys.stdout.isatty() else 120)
    results: dict[str, Any] = {"repeats": arguments.repeats, "environment": environment()}
    if (results["environment"]["load_average_at_start"] or 0) > BUSY:
        console.print("the machine is busy: these figures will mean little")
    for name, measure in SUBJECTS.items():
        if arguments.only not in (None, name):
            continue
        start = time.perf_counter()
        with console.status(f"measuring {name}"):
            subject = measure(arguments.repeats)
        console.print(subject.table())
        results[name] = {**subject.to_json(), "seconds": time.perf_counter() - start}
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {arguments.out}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
