"""All benchmarks: ``python benchmarks/run.py [--out FILE.json] [--repeats 7] [--only SUBJECT]``.

Prints one table per subject and writes every figure, with the machine it was taken on, as JSON. A
subject that is measured alone replaces its own figures in the file. All of them take about an hour
on two cores, most of it the options; nothing else should run on the machine meanwhile. Targets are
printed beside the figures, never asserted.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import directions
import options
import real_batches
import replay
import step
from harness import environment
from rich.console import Console

import evaluation
from hofl.core.process import tune_allocator, use_threads

SUBJECTS = {
    "step": step.measure,
    "real-batches": real_batches.measure,
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
    parser.add_argument("--only", choices=SUBJECTS, help="this subject alone")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")

    tune_allocator()
    use_threads(0, 1)
    console = Console(width=None if sys.stdout.isatty() else 120)
    machine = environment()
    if (machine["load_average_at_start"] or 0) > BUSY:
        console.print("the machine is busy: these figures will mean little")
    results: dict[str, Any] = {}
    if arguments.only and arguments.out.exists():
        results = json.loads(arguments.out.read_text())
    for name, measure in SUBJECTS.items():
        if arguments.only not in (None, name):
            continue
        start = time.perf_counter()
        with console.status(f"measuring {name}"):
            subject = measure(arguments.repeats)
        console.print(subject.table())
        results[name] = {
            **subject.to_json(),
            "seconds": time.perf_counter() - start,
            "repeats": arguments.repeats,
            "environment": machine,
        }
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {arguments.out}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
