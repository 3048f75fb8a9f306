"""Learning levers against their controls, seed by seed: the same cohorts and minibatches.

    python benchmarks/levers.py --out runs/levers
    python benchmarks/levers.py --out runs/levers --only exact,momentum --seeds 1,2,3
    python benchmarks/levers.py --out runs/levers-smollm2 --config docs/results/sst2-smollm2.toml \
        --only exact,momentum rounds=8

Finished runs are kept and unfinished ones begun anew, so the same command can be repeated. Printed
are paired differences from each lever's control with 95 % intervals over seeds, by the statistics
of ``hofl compare``; negative differences of losses and positive ones of scores are gains.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from lever_parts import enter

import hofl
from hofl.core.paired import difference
from hofl.reporting.cells import read_cell
from hofl.reporting.rows import Row

COMMON = ["evaluation.every=0", "evaluation.holdout=0"]
EXACT, HYBRID = ["method.name=recompute"], ["method.name=hofl"]
QUANTITY = [*EXACT, "data.partition=quantity", "data.alpha=0.3", "data.examples_per_client=0"]
LABELS = [*HYBRID, "data.partition=dirichlet", "data.alpha=0.1"]


@dataclass(frozen=True)
class Lever:
    """A row of the study.

    Args:
        changes: of the configuration.
        control: name of the row that it is compared with; empty for a control.
    """

    changes: list[str]
    control: str = ""


def _exact(change: str) -> Lever:
    return Lever([*EXACT, change], "exact")


LEVERS: dict[str, Lever] = {
    "exact": Lever(EXACT),
    "momentum": _exact("method.aggregation={ name = 'server-momentum', beta = 0.5 }"),
    "longer": _exact("method.aggregation={ name = 'server-longer', scale = 2.0 }"),
    "adam": _exact("method.aggregation={ name = 'server-adam', lr = 2e-3 }"),
    "centred": _exact("method.surrogate=centred"),
    "centred-whole": _exact("method.surrogate={ name = 'centred', whole = true }"),
    "hybrid": Lever(HYBRID),
    "hybrid-centred": Lever([*HYBRID, "method.surrogate=centred"], "hybrid"),
    "hybrid-momentum": Lever(
        [*HYBRID, "method.aggregation={ name = 'server-momentum', beta = 0.5 }"], "hybrid"
    ),
    "quantity": Lever(QUANTITY),
    "quantity-by-examples": Lever([*QUANTITY, "method.aggregation=by-examples"], "quantity"),
    "labels": Lever(LABELS),
    "labels-unbiased": Lever([*LABELS, "method.aggregation=unbiased"], "labels"),
}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default="docs/results/sst2-stories15m.toml")
    parser.add_argument("--only", default=",".join(LEVERS), help="which of them")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("changes", nargs="*", help="key=value for all runs")
    words = parser.parse_args()
    enter()
    seeds, names = words.seeds.split(","), words.only.split(",")
    for seed in seeds:
        for name in names:
            folder = words.out / f"{name}-{seed}"
            if not (folder / "summary.json").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                changes = [*COMMON, *LEVERS[name].changes, f"seed={seed}", *words.changes]
                found = hofl.run(hofl.read_config(words.config, changes), folder).record
                print(f"{name}, seed {seed}: {found.final}, {found.seconds:.0f} s", flush=True)
    rows = {name: _row(words.out, name, seeds) for name in names}
    for name, row in rows.items():
        _show(name, row, rows.get(LEVERS[name].control))


def _row(out: Path, name: str, seeds: list[str]) -> Row:
    return Row(name, [read_cell(out / f"{name}-{seed}", name, int(seed)) for seed in seeds])


def _show(name: str, row: Row, control: Row | None) -> None:
    """Print a row: each seed's loss and score, then the differences from its control."""
    losses = " ".join(f"{value:.4f}" for value in row.values("loss").values())
    scores = " ".join(f"{100 * value:.2f}" for value in row.values("score").values())
    print(f"{name}: loss {losses}, score {scores}")
    if control is None:
        return
    pairs = {
        "loss": (row.values("loss"), control.values("loss"), 1),
        "training loss": (_trained(row), _trained(control), 1),
        "score": (row.values("score"), control.values("score"), 100),
    }
    for title, (mine, theirs, scale) in pairs.items():
        each = [scale * (mine[seed] - theirs[seed]) for seed in mine if seed in theirs]
        shown = " ".join(f"{value:+.4f}" for value in each)
        print(f"    {title} - {control.label}: {shown}{_interval(each)}")


def _trained(row: Row) -> dict[int | None, float]:
    """Return the mean training loss over all rounds of each finished seed."""
    return {
        cell.seed: fmean(record.train_loss for record in cell.records[1:]) for cell in row.finished
    }


def _interval(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    told = difference(np.array(values)[:, None], np.zeros((len(values), 1)))
    low, high = told.interval()
    return f"; mean {told.mean:+.4f}, 95 % from {low:+.4f} to {high:+.4f}"


if __name__ == "__main__":
    main()
