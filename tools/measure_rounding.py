"""The noise of a rounded uplink: ``python tools/measure_rounding.py CONFIG [key=value ...]``.

E|error|^2 / |difference|^2 and the bytes of the differences of three clients in the first round,
for every number of bits, printed and kept in docs/results/data/rounding.json by the model's name.
The configuration's uplink must have 32 bits.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import hofl
from hofl.core.packing import Packed, pack, unpack
from hofl.experiment.build import build_simulation
from hofl.messages import Upload
from hofl.rules import UPLINK_BITS

OUT = Path(__file__).parents[1] / "docs" / "results" / "data" / "rounding.json"
CLIENTS = 3


def noise(exact: Tensor, bits: int, seed: int) -> tuple[float, float]:
    """Return the error's share of the squared length, and the bytes over those of 32 bits."""
    sent = pack(exact, bits, np.random.default_rng(seed))
    error = unpack(sent, bits, len(exact)) - exact
    parts = (sent.codes, sent.scales) if isinstance(sent, Packed) else (sent,)
    share = (error.square().sum() / exact.square().sum()).item()
    return share, sum(part.nbytes for part in parts) / exact.nbytes


def differences(config: hofl.ExperimentConfig) -> list[Tensor]:
    """Train three clients for one round."""
    experiment = build_simulation(config)
    present = experiment.present(0)
    plans = (experiment.plan(experiment.start, client, present) for client in range(CLIENTS))
    answers = (experiment.client.answer(plan.to_bytes()) for plan in plans)
    return [Upload.from_bytes(answer).difference for answer in answers]


def main() -> None:
    """Measure one model; rows of others stay."""
    source, *changes = sys.argv[1:] or sys.exit(__doc__)
    config = hofl.read_config(source, changes)
    exact = differences(config)
    row: dict[str, Any] = {"command": " ".join(["python tools/measure_rounding.py", *sys.argv[1:]])}
    for bits in UPLINK_BITS[1:]:
        found = [noise(values, bits, client) for client, values in enumerate(exact)]
        shares = [float(f"{share:.3g}") for share, _ in found]
        row[str(bits)] = {"noise": [min(shares), max(shares)], "size": round(found[0][1], 5)}
        print(f"{bits} bits: {min(shares):.2g} - {max(shares):.2g}")
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    known[Path(config.model.name).name] = row
    OUT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
