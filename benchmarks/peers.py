"""A race: one FedAvg LoRA round of SmolLM2-135M on SST-2, from the same start to the same adapter.

``python benchmarks/peers.py [--repeats 3] [--out FILE.json]``, with SST-2's files in HOFL_DATA. 30
clients, 6 of them drawn, 5 AdamW steps each on 16 texts. The contenders:

- ``plain``: PEFT and a torch loop with dynamic padding, as a tutorial writes it: the model's own
  forward pass with the scores of the whole vocabulary, of which the label words are compared;
- ``plain, label words``: the same loop, with the head computed at the label words alone;
- ``flower``: that loop in a ClientApp under Flower's simulation, if ray is installed
  (``peers-requirements.txt`` says how); ray listens on all interfaces, so it runs in a network
  namespace of its own (``unshare``, root);
- ``pfl``: the same loss under pfl-research's FederatedAveraging, if it is installed;
- ``hofl``: ``hofl.run``.

Every contender has a process of its own. Seconds are those of the round, without loading the model;
memory is the peak, over samples every 0.1 s, of the proportional set size of all its processes;
bytes are the uploads. A contender that ends in another adapter than hofl's (further off than a
hundredth of the update's norm) is out of the race; how far off each is, is printed.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from contenders import CONTENDERS, adapter_of, configuration
from harness import environment
from rich.console import Console
from rich.table import Table

import hofl
from hofl.experiment.build import build_simulation
from hofl.experiment.runs import RunDirectory
from hofl.local.site import PLAIN

CLOSE = 1e-2
"""Norm of the difference between two adapters' updates, over the norm of the update. AdamW divides
by the root of tiny squares, so rounding in a gradient near zero grows to a step of its own."""


def prepare(job: Path) -> None:
    """Run hofl once; write what the others need: the start, the clients' batches, the end."""
    run = job.with_name("prepared")
    hofl.run(configuration(), run)
    record = RunDirectory.open(run).metrics()[-1]
    experiment = build_simulation(configuration())
    model, present = experiment.model.split, experiment.present(0)
    clients = []
    for number in record.answered:
        plan = experiment.plan(experiment.start, number, present)
        steps = [parts[0] for parts in experiment.client._batches(plan, PLAIN)]
        clients.append([(_texts(step), step.goal.targets) for step in steps])
    words = steps[0].goal.candidates
    facts = {"start": adapter_of(model.module), "clients": clients, "words": words}
    torch.save({**facts, "reference": experiment.model.reference}, job)


def _texts(batch: Any) -> list[torch.Tensor]:
    return list(batch.texts.tokens.split(batch.texts.lengths))


def contend(name: str, job: Path) -> None:
    """Run one contender in this process and print the outcome as JSON."""
    loaded = torch.load(job, weights_only=False)
    seconds, end, sent = CONTENDERS[name](loaded)
    change = torch.cat([(end[n] - loaded["start"][n]).reshape(-1) for n in loaded["start"]])
    torch.save(change, job.with_name(f"{name}.pt"))
    print(json.dumps({"seconds": seconds, "uplink_bytes": sent}))


def watched(command: list[str]) -> tuple[str | None, int]:
    """Run a command; return what it printed (None if it failed) and its processes' peak memory."""
    with tempfile.TemporaryFile("w+") as printed:
        process, peak = psutil.Popen(command, stdout=printed), 0
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(p.memory_full_info().pss for p in family))
            time.sleep(0.1)
        printed.seek(0)
        return (None if process.returncode else printed.read()), peak


def race(job: Path, names: list[str], repeats: int) -> list[dict[str, Any]]:
    """Let the contenders run in turn; one row each."""
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failed: set[str] = set()
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            command = [sys.executable, __file__, "--contender", name, "--job", str(job)]
            if name == "flower":
                inner = " ".join(f"'{word}'" for word in command)
                command = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {inner}"]
            printed, peak = (None, 0) if name in failed else watched(command)
            if printed is None:
                failed.add(name)
            else:
                samples[name].append({**json.loads(printed.splitlines()[-1]), "peak": peak})
    for needed in ("plain", "hofl"):
        if needed in failed or needed not in names:
            sys.exit(f"{needed} did not finish, and the others are compared with it.")
    return [_row(name, job, samples) if name not in failed else _out(name) for name in names]


def _out(name: str, why: str = "did not finish") -> dict[str, Any]:
    return {"variant": name, "failed": why}


def _row(name: str, job: Path, samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    reference, change = (torch.load(job.with_name(f"{n}.pt")) for n in ("hofl", name))
    off = ((change - reference).norm() / reference.norm()).item()
    if off > CLOSE:
        return _out(name, f"ended in another adapter, {off:.2g} of the update away")
    seconds = [sample["seconds"] for sample in samples[name]]
    return {
        "variant": name,
        "median_seconds": median(seconds),
        "min_seconds": min(seconds),
        "ratio": median(seconds) / median(sample["seconds"] for sample in samples["plain"]),
        "peak_bytes": max(sample["peak"] for sample in samples[name]),
        "uplink_bytes": samples[name][0]["uplink_bytes"],
        "adapter_difference": off,
        "samples_in_seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    shown = Table(title="One FedAvg round of SmolLM2-135M on SST-2", title_justify="left")
    for headline in (
        "contender",
        "median s",
        "min s",
        "time / plain",
        "peak MiB",
        "uplink MiB",
        "off by",
    ):
        shown.add_column(headline)
    for row in rows:
        if "failed" in row:
            shown.add_row(row["variant"], row["failed"])
            continue
        times = (f"{row[key]:.2f}" for key in ("median_seconds", "min_seconds", "ratio"))
        sizes = (f"{row[key] / 2**20:.1f}" for key in ("peak_bytes", "uplink_bytes"))
        shown.add_row(row["variant"], *times, *sizes, f"{row['adapter_difference']:.1g}")
    return shown


def main() -> None:
    """Prepare the job, run the race, print and write it."""
    parser = argparse.ArgumentParser(description="hofl against what people use today.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "peers.json")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--without", action="append", default=[], choices=["flower", "pfl", "plain, label words"]
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    if arguments.contender:
        contend(arguments.contender, arguments.job)
        return
    if arguments.job:
        prepare(arguments.job)
        return
    machine = environment()  # before the race, which loads the machine
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.pt"
        subprocess.run([sys.executable, __file__, "--job", str(job)], check=True)
        names = [name for name in CONTENDERS if name not in arguments.without]
        rows = race(job, names, arguments.repeats)
    Console(width=120).print(table(rows))
    facts = {"rows": rows, "environment": machine}
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
