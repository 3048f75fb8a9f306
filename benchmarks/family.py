"""Every method of the family on SST-2, each at its best of three learning rates.

``python benchmarks/family.py --out runs/family`` runs what is missing, one run after another, and
writes ``docs/results/data/family.json`` and the table of docs/family.md from all that is there.
Finished runs are kept and a stopped one is resumed, so the same command can be repeated. With
--write nothing is run; with --check nothing is written either, and a table that is not what the
JSON file says ends in an error.

All see the same number of training examples: rounds x cohort x local steps x batch. The learning
rate is that of the lowest loss on held-out examples; accuracy and loss are of the test set.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from hofl.core.sizes import show_bytes

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "docs" / "results" / "family.toml"
DATA = ROOT / "docs" / "results" / "data" / "family.json"
PAGE = ROOT / "docs" / "family.md"
START = "<!-- comparison: python benchmarks/family.py --out runs/family -->"
END = "<!-- end of comparison -->"
ONE_STEP = ["rounds=30", "method.local_steps=1"]
ONE_CLIENT = ["fleet.clients=1", "fleet.cohort=1", "data.examples_per_client=2000"]
ADAMW, SGD = ("3e-4", "1e-3", "3e-3"), ("1e-4", "1e-3", "3e-3")
Facts = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A method in the comparison.

    Args:
        rates: three learning rates.
        changes: of the configuration.
        top_times: a server's own rate, as a multiple of the clients', where a workflow has one.
        split: whether ``hofl split`` runs it.
    """

    rates: tuple[str, str, str]
    changes: tuple[str, ...] = ()
    top_times: float = 0.0
    split: bool = False

    def given(self, name: str, rate: str, seed: int) -> list[str]:
        """All changes of one run."""
        top = [f"method.workflow.server_lr={self.top_times * float(rate):.6g}"]
        named = [f"method.name={name}", f"method.optimizer.lr={rate}", f"seed={seed}"]
        return [*named, *self.changes, *(top if self.top_times else [])]


ENTRIES: dict[str, Entry] = {
    "fedavg": Entry(ADAMW),
    "frozen-bottom": Entry(ADAMW),
    "hofl": Entry(ADAMW),
    "ho-sfl": Entry(ADAMW, tuple(ONE_STEP), split=True),
    # A zeroth-order step of q directions is about d / q times as noisy: the bottom goes slower.
    "hosl": Entry(
        ("1e-4", "3e-4", "1e-3"),
        ("rounds=120", "method.local_steps=1", *ONE_CLIENT, "fleet.boundaries=[0.75]"),
        top_times=100,
        split=True,
    ),
    "heron-sfl": Entry(("1e-5", "3e-5", "1e-4"), top_times=300, split=True),
    "decomfl-sgd": Entry(SGD),
    "hiso": Entry(SGD, tuple(ONE_STEP)),  # as its authors: H moves once in every step
    "fedzo": Entry(("1e-3", "3e-3", "1e-2")),
    "mezo": Entry(("1e-5", "1e-4", "1e-3"), ("rounds=24", *ONE_CLIENT, "fleet.boundaries=[0.75]")),
    "fedkseed": Entry(SGD),
}

DEAR = ("hosl", "fedzo")
"""Twenty passes through the model and more for each example."""


def trained(folder: Path, entry: Entry, changes: list[str]) -> None:
    """Run it, or go on with it; a finished run is left as it is.

    The roles of a split run have processes of their own: so the memory of each can be measured.
    """
    import hofl
    from hofl.twoparty.run import resume_split, run_split

    run: Callable[..., Any] = partial(run_split, processes=1) if entry.split else hofl.run
    resume: Callable[..., Any] = partial(resume_split, processes=1) if entry.split else hofl.resume
    if (folder / "config.toml").is_file():
        resume(folder)
    else:
        run(hofl.read_config(str(CONFIG), changes), folder)


def passes(config: Facts, examples: int, records: list[Any], blocks: int) -> int:
    """Blocks run forward or backward in all training, clients and server together."""
    import numpy as np

    from hofl.methods import METHODS
    from hofl.reporting.measures import block_passes

    name, given = config["method.name"], config["fleet.boundaries"]
    method = METHODS[name]
    allowed = np.array([round(b * blocks) if isinstance(b, float) else b for b in given])
    cuts = method.boundary(allowed, blocks)
    if name == "heron-sfl":  # anchor and probes below, one step in k above
        b, q, k = int(cuts[0]), method.local.q, 5
        return round(examples * ((1 + q) * b + 2 * (blocks - b) / k))
    if len(set(cuts.tolist())) == 1:
        return round(examples * (block_passes(method.local, int(cuts[0]), blocks) or 0))
    used = [int(cuts[i]) for record in records for i in record.answered]
    return round(examples * mean(block_passes(method.local, b, blocks) or 0 for b in used))


def facts_of(folder: Path, rate: str, seed: int) -> Facts | None:
    """A finished run in a few numbers."""
    from hofl.reporting.cells import read_cell

    cell = read_cell(folder)
    summary = cell.summary
    if summary is None:
        return None
    steps = sum(len(record.answered) for record in cell.records) * cell.config["method.local_steps"]
    examples = steps * cell.config["task.batch_size"]
    values = {
        "accuracy": summary.final["accuracy"],
        "loss": summary.final["loss"],
        "held_out_loss": summary.final["clients"]["loss"],
    }
    return {
        "rate": rate,
        "seed": seed,
        **{k: round(v, 6) if math.isfinite(v) else None for k, v in values.items()},
        "client_peak": summary.peak_bytes,
        "least_client_peak": min(summary.peak_by_boundary.values(), default=summary.peak_bytes),
        "server_peak": summary.server_peak_bytes,
        "up": summary.uplink_bytes,
        "down": summary.downlink_bytes,
        "examples": examples,
        "passes": passes(cell.config, examples, cell.records[1:], summary.blocks),
        "start": round(summary.initial["clients"]["loss"], 6),
    }


def collected(out: Path, seeds: list[int]) -> Facts:
    """All finished runs, by method."""
    runs: dict[str, list[Facts]] = {}
    for name, entry in ENTRIES.items():
        found = (
            facts_of(out / f"{name}-{rate}-{seed}", rate, seed)
            for rate in entry.rates
            for seed in seeds
        )
        runs[name] = [one for one in found if one is not None]
    return {"command": "python benchmarks/family.py --out runs/family", "runs": runs}


def best(runs: list[Facts]) -> list[Facts]:
    """The runs of the learning rate with the lowest mean loss on held-out examples."""
    by_rate: dict[str, list[Facts]] = {}
    for one in runs:
        by_rate.setdefault(one["rate"], []).append(one)

    def loss(rate: str) -> float:
        losses = [one["held_out_loss"] for one in by_rate[rate]]
        return math.inf if None in losses else mean(losses)

    return by_rate[min(by_rate, key=loss)] if by_rate else []


def rate_of(name: str, runs: list[Facts], chosen: list[Facts]) -> str:
    """The chosen rate, how many were tried, and whether it is one of the ends of the grid."""
    rates, rate = ENTRIES[name].rates, str(chosen[0]["rate"])
    tried = len({each["rate"] for each in runs})
    if tried < len(rates):
        return f"{rate} (of {tried})"
    ends = {rates[0]: "smallest", rates[-1]: "largest"}
    return f"{rate} ({ends[rate]})" if rate in ends else rate


def peaks(one: Facts) -> str:
    """A client's peak, of the smallest and the largest device where they differ."""
    least, most = one.get("least_client_peak", one["client_peak"]), one["client_peak"]
    both = [show_bytes(least), show_bytes(most)]
    return " - ".join(dict.fromkeys(both))


def row(name: str, runs: list[Facts]) -> str:
    """A method's line of the table."""
    chosen = best(runs)
    if not chosen:
        return f"| `{name}` | not run |" + " |" * 8
    one, rate = chosen[0], rate_of(name, runs, chosen)
    cells = (
        f"`{name}`",
        rate,
        f"{100 * mean(each['accuracy'] for each in chosen):.1f} %",
        f"{mean(each['loss'] for each in chosen):.3f}",
        f"{mean(each['held_out_loss'] for each in chosen):.3f}",
        peaks(one),
        show_bytes(one["server_peak"]) if one["server_peak"] else "no model",
        show_bytes(mean(each["up"] for each in chosen)),
        show_bytes(mean(each["down"] for each in chosen)),
        f"{one['passes'] / one['examples']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def table(data: Facts) -> str:
    """The table in Markdown."""
    head = ("method", "lr", "accuracy", "loss", "held-out loss", "client's peak", "server's peak")
    head += ("up", "down", "block passes per example")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(row(name, data["runs"].get(name, [])) for name in ENTRIES)])


def written(data: Facts) -> str:
    """The page with the table in place."""
    text = PAGE.read_text()
    if not text.count(START) == text.count(END) == 1:
        sys.exit(f"docs/family.md: the table stands between {START} and {END}, each once.")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{table(data)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run what is missing, then write or compare the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "family")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--methods", default=",".join(ENTRIES), help="which of them are run")
    parser.add_argument("--write", action="store_true", help="run nothing")
    parser.add_argument("--check", action="store_true", help="compare the table with the file")
    words = parser.parse_args()
    if words.check:
        if written(json.loads(DATA.read_text())) != PAGE.read_text():
            sys.exit("docs/family.md: the comparison is not what family.json says; use --write.")
        return
    seeds = [int(seed) for seed in words.seeds.split(",")]
    # One run of every method first; then the cheap ones' other rates, so that a stop costs little.
    first = [(seed, 1, name) for seed in seeds for name in ENTRIES]
    rest = [(seed, k, name) for seed in seeds for k in (0, 2) for name in ENTRIES]
    order = first + sorted(rest, key=lambda run: run[2] in DEAR)
    for seed, k, name in order if not words.write else []:
        entry = ENTRIES[name]
        if name in words.methods.split(","):
            folder = words.out / f"{name}-{entry.rates[k]}-{seed}"
            trained(folder, entry, entry.given(name, entry.rates[k], seed))
            print(folder.name, facts_of(folder, entry.rates[k], seed), flush=True)
    data = collected(words.out, seeds)
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(written(data))


if __name__ == "__main__":
    main()
