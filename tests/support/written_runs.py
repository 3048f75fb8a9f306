"""Run folders with the files that a run writes, without training anything."""

import random
from pathlib import Path
from typing import Any

from hofl.core.secret import RunSecret
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.runs import RunDirectory
from support.runs import quick

CLIENTS, BLOCKS, ROUNDS = 6, 4, 6


def write_run(
    path: Path,
    method: str,
    seed: int,
    /,
    level: float = 0.5,
    *,
    rounds: int = ROUNDS,
    **changes: Any,
) -> Path:
    """Write a run that ends with about this score; with fewer rounds it is unfinished."""
    boundaries = random.Random(seed).sample([1, 1, 2, 2, 3, 3], CLIENTS)
    luck = random.Random(f"{method} {seed}")
    fleet = {"clients": CLIENTS, "cohort": 3, "boundaries": boundaries}
    options = {"method": {"name": method}, "fleet": fleet, **changes}
    config = quick(Path("/models/tiny"), rounds=ROUNDS, seed=seed, **options)
    run = RunDirectory.create(path, config, RunSecret.from_seed(seed), data={"test": "0" * 64})
    zeroth = method == "hofl"
    cuts = [0] * CLIENTS if method == "fedavg" else boundaries
    counts, shift = [0] * CLIENTS, luck.gauss(0, 0.02)
    records = []
    for number in range(rounds + 1):
        score = 0.25 + (level - 0.25) * number / ROUNDS + (shift if number else 0)
        cohort = sorted(luck.sample(range(CLIENTS), 3)) if number else []
        for client in cohort:
            counts[client] += 1
        record = RoundRecord(
            round=number,
            cohort=cohort,
            answered=cohort,
            train_loss=2.0 - score if number else None,
            uplink_bytes=1000 * (4 - len(set(cuts))) if number else 0,
            downlink_bytes=4000 if number else 0,
            seconds=2.5 if number else 0.0,
            examples=24 if number else 0,
            zo_snr=20.0 / number if zeroth and number else None,
            scores={"accuracy": score, "loss": 1.5 - score, "examples": 200},
        )
        run.record(record)
        records.append(record)
    if rounds == ROUNDS:
        trained = records[1:]
        run.write_summary(
            RunSummary(
                method=method,
                model="tiny",
                task="helpdesk",
                rounds=ROUNDS,
                initial=records[0].scores,
                final=records[-1].scores,
                uplink_bytes=sum(record.uplink_bytes for record in trained),
                downlink_bytes=sum(record.downlink_bytes for record in trained),
                peak_bytes=max(900 - 100 * b for b in cuts) * 2**20,
                peak_by_boundary={b: (900 - 100 * b) * 2**20 for b in sorted(set(cuts))},
                seconds=2.5 * ROUNDS,
                blocks=BLOCKS,
                audit={"expected": [3.0] * CLIENTS, "realised": counts},
            )
        )
    return path
