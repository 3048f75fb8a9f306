"""What the recorded rounds say of a whole run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hofl.experiment.build import Experiment
from hofl.experiment.runs import RunDirectory
from hofl.sampling.audit import audit
from hofl.server.accounting import Ledger, releases


def ledger_of(experiment: Experiment, run: RunDirectory) -> Ledger | None:
    """What the rounds so far have told of every device; None without privacy."""
    if experiment.privacy is None:
        return None
    noise, delta = experiment.privacy.noise, experiment.config.privacy.delta
    return Ledger(noise, releases(experiment.method.local), delta, run.metrics()[1:])


def summarise(experiment: Experiment, run: RunDirectory) -> dict[str, Any]:
    """Totals over all rounds, from the metrics file alone."""
    rows = run.metrics()
    trained = rows[1:]
    peaks = {b: peak for row in trained for b, peak in row["peak_by_boundary"].items()}
    ledger, wire = ledger_of(experiment, run), on_the_wire(trained)
    ratios = [row["zo_snr"] for row in trained if row["zo_snr"] is not None]
    return {
        "method": experiment.config.method.name,
        "model": experiment.config.model.name,
        "task": experiment.config.task.name,
        "rounds": len(trained),
        "initial": rows[0]["eval"],
        "final": trained[-1]["eval"],
        "uplink_bytes": sum(row["uplink_bytes"] for row in trained),
        "downlink_bytes": sum(row["downlink_bytes"] for row in trained),
        "peak_bytes": max(row["peak_bytes"] for row in trained),
        "peak_by_boundary": dict(sorted(peaks.items(), key=lambda item: int(item[0]))),
        "zo_snr": float(torch.tensor(ratios).median()) if ratios else None,
        "seconds": round(sum(row["seconds"] for row in trained), 3),
        "eval_seconds": round(sum(row.get("eval_seconds", 0.0) for row in rows), 3),
        "trainable": experiment.layout.size,
        "audit": audit(drawn_shares(experiment, trained)).summary(),
        "adapter": run.adapter.name,
        **({"wire": wire} if wire else {}),
        **({} if ledger is None else {"epsilon": ledger.summary()}),
    }


def on_the_wire(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Bytes of all rounds and devices, down and up; empty without a network.

    ``plan`` and ``upload`` are the algorithm's own, ``down`` and ``up`` the messages around them,
    ``http_down`` and ``http_up`` all that a gateway counted.
    """
    totals: Counter[str] = Counter()
    for row in rows:
        for one in row.get("wire", {}).values():
            totals.update({name: int(size) for name, size in one.items() if name != "seconds"})
    return dict(totals)


def drawn_shares(
    experiment: Experiment, rows: Sequence[dict[str, Any]]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Every cohort with the shares it was drawn from, zero for those who were not there, [N]."""
    known = [len(experiment.fleet.start), *(int(i) + 1 for r in rows for i in r.get("present", ()))]
    for row in rows:
        own = row.get("present")
        own = own and {int(i): b for i, b in own.items()}
        present = experiment.present(row["round"] - 1, own).without(row.get("resting", ()))
        shares = np.zeros(max(known))
        shares[present.clients] = experiment.marginals(row["round"] - 1, present)
        yield row["cohort"], shares
