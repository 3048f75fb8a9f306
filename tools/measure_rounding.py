"""The noise of a rounded uplink: ``python tools/measure_rounding.py CONFIG [key=value ...]``.

Prints E|error|^2 / |difference|^2 for the differences of three clients in the first round, a line
for every number of bits. The configuration's uplink must have 32 bits.
"""

import sys

import numpy as np

import hofl
from hofl.core.packing import pack, unpack
from hofl.experiment.build import build_simulation
from hofl.messages import Upload
from hofl.rules import UPLINK_BITS

CLIENTS = 3


def main() -> None:
    """Train three clients for one round, round their differences."""
    source, *changes = sys.argv[1:] or sys.exit(__doc__)
    experiment = build_simulation(hofl.read_config(source, changes))
    present = experiment.present(0)
    differences = []
    for client in range(CLIENTS):
        plan = experiment.plan(experiment.start, client, present)
        differences.append(Upload.from_bytes(experiment.client.answer(plan.to_bytes())).difference)
    for bits in UPLINK_BITS[1:]:
        shares = []
        for client, exact in enumerate(differences):
            rounded = unpack(pack(exact, bits, np.random.default_rng(client)), bits, len(exact))
            shares.append(((rounded - exact).square().sum() / exact.square().sum()).item())
        print(f"{bits} bits: {min(shares):.2g} - {max(shares):.2g}")


if __name__ == "__main__":
    main()
