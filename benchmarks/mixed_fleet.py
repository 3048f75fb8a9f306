"""Three kinds of devices, each by its own rule, beside FedAvg, HO-FL and the frozen control.

``python benchmarks/mixed_fleet.py --out runs/mixed --rounds 20 --seeds 1,2,3`` runs the recipe
``sst2-devices`` and its baselines, one run after another. Finished runs are kept and a stopped one
is resumed, so the same command can be repeated, and prints the table of what is there.
"""

import argparse
from pathlib import Path
from statistics import mean

import hofl
from hofl.core.sizes import show_bytes
from hofl.experiment.records import RunSummary

TIERS = "fleet.boundaries=[0.25, 0.5, 0.75]"
METHODS: dict[str, list[str]] = {
    "plan": [],
    "fedavg": ["method.name=fedavg", "fleet.devices=[]", TIERS],
    "hofl": ["fleet.devices=[]", TIERS],
    "frozen-bottom": ["method.name=frozen-bottom", "fleet.devices=[]", TIERS],
}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--methods", default=",".join(METHODS), help="which of them")
    parser.add_argument("changes", nargs="*", help="key=value for all runs")
    words = parser.parse_args()
    chosen = {name: METHODS[name] for name in words.methods.split(",")}
    found: dict[str, list[RunSummary]] = {name: [] for name in chosen}
    for seed in words.seeds.split(","):
        for name, changes in chosen.items():
            folder = words.out / f"{name}-{seed}"
            given = [f"rounds={words.rounds}", f"seed={seed}", *words.changes]
            if (folder / "config.toml").is_file():
                found[name].append(hofl.resume(folder).record)
            else:
                config = hofl.read_config("sst2-devices", [*changes, *given])
                found[name].append(hofl.run(config, folder).record)
            print(f"{name}, seed {seed}: {found[name][-1].final}", flush=True)
    for name, runs in found.items():
        scores = [100 * float(run.final["accuracy"]) for run in runs]
        peaks = {b: show_bytes(peak) for b, peak in runs[0].peak_by_boundary.items()}
        shown = " / ".join(f"{score:.1f}" for score in scores)
        uplink = show_bytes(mean(run.uplink_bytes for run in runs))
        print(f"{name}: accuracy {mean(scores):.2f} ({shown}), uplink {uplink}, peaks {peaks}")


if __name__ == "__main__":
    main()
