"""Cells of tables without a run behind them: what a folder would have said."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hofl.experiment.records import RoundRecord, RunSummary
from hofl.reporting.cells import Cell

CONFIG = {
    "model.name": "m",
    "task.name": "helpdesk",
    "rounds": 2,
    "fleet.clients": 4,
    "fleet.boundaries": [1, 1, 3, 3],
}


def cell(
    method: str,
    seed: int,
    score: float | None,
    *,
    loss: float = 1.0,
    held_out: float | None = None,
    config: Mapping[str, Any] = {},
    environment: Mapping[str, Any] = {},
    records: Sequence[RoundRecord] = (),
    problem: str = "",
    scores: Mapping[str, float] = {},
    **summary: Any,
) -> Cell:
    """A cell that ended with this score, or did not end when there is none."""
    values = {**CONFIG, "seed": seed, "method.name": method, **config}
    final: dict[str, Any] = {"accuracy": score, "loss": loss, "examples": 10, **scores}
    if held_out is not None:
        final["clients"] = {"loss": held_out}
    facts = {"initial": {"accuracy": 0.25}, "uplink_bytes": 10, "downlink_bytes": 20, **summary}
    done = RunSummary(method=method, model="m", task="helpdesk", rounds=2, final=final, **facts)
    label = "-".join([method, *(f"{k}={v}" for k, v in config.items())])
    return Cell(
        path=Path(f"/runs/{label}-{seed}"),
        seed=seed,
        config=values,
        environment=environment,
        records=records or [RoundRecord(round=0, scores={"accuracy": 0.25})],
        summary=None if score is None else done,
        problem=problem,
        rounds=2,
    )
