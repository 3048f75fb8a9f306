"""What the network costs: rounds of devices on 127.0.0.1 against the same rounds in one process.

Run: python tools/measure_network.py CONFIG [key=value ...] [--devices 3] [--rounds 4]

The same configuration is trained twice: by the in-process engine, one client after another, and by
a server and resident devices as processes of their own. The first round, in which models are
warmed up, is left out. Overhead is a round's time less the computing of its slowest device.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import hofl
from hofl.deploy.rehearsal import rehearsal_launcher, sized
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import RunDirectory


def configuration(source: str, changes: list[str], devices: int, rounds: int) -> ExperimentConfig:
    """One thread per device on both sides: the same bits, and a like comparison."""
    fixed = [f"rounds={rounds}", "engine.threads=1", "engine.workers=1", f"fleet.cohort={devices}"]
    return sized(hofl.read_config(source, [*changes, *fixed]), devices)


def adapter(run: Path) -> bytes:
    """The trained adapter, byte for byte."""
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


def measured(config: ExperimentConfig, folder: Path) -> dict[str, Any]:
    """Medians over the rounds after the first, in seconds and bytes."""
    alone = hofl.run(config, folder / "alone")
    fleet = hofl.run(config, folder / "fleet", progress, rehearsal_launcher())
    rows = RunDirectory(fleet.path).metrics()[2:]
    computing = [max(sizes["seconds"] for sizes in row.wire.values()) for row in rows]
    overhead = [row.seconds - most for row, most in zip(rows, computing, strict=True)]
    in_process = median(row.seconds for row in RunDirectory(alone.path).metrics()[2:])
    network = median(row.seconds for row in rows)
    wire = rows[-1].wire
    return {
        "rounds": len(rows),
        "in_process_seconds": in_process,
        "network_seconds": network,
        "slowest_device_seconds": median(computing),
        "overhead_seconds": median(overhead),
        "overhead_of_round": median(overhead) / network,
        "network_over_in_process": network / in_process,
        "same_bits": adapter(alone.path) == adapter(fleet.path),
        "bytes": {
            client: {
                "boundary": (rows[-1].present or {})[client],
                **{key: sizes[key] for key in ("plan", "down", "upload", "up")},
            }
            for client, sizes in wire.items()
        },
    }


def progress(event: str, facts: dict[str, Any]) -> None:
    """Print what happens to devices, and the rounds as they end."""
    if event == "device":
        print(facts["text"], flush=True)
    elif event == "round":
        print(f"round {facts['round']}: {facts['seconds']:.1f} s", flush=True)


def main() -> None:
    """Measure and print, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    config = configuration(chosen.config, chosen.changes, chosen.devices, chosen.rounds)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(config, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
