"""Weights & Biases: offline in RUN/wandb unless ``WANDB_MODE=online``; ``wandb sync`` uploads it.

Nothing leaves the machine unless it is asked for. Project, entity and the rest are W&B's own
environment variables (``WANDB_PROJECT``, ``WANDB_ENTITY``).
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from hofl.tracking.trackers import kept_identity


class WeightsAndBiases:
    """Logs to one run of W&B, also when the run is resumed."""

    def __init__(self, run: Path) -> None:
        self._folder = run
        self._run: Any = None

    def start(self, settings: Mapping[str, Any], reached: int) -> None:
        """Open the run by the identity that it was given first."""
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "hofl"),
            name=self._folder.name,
            id=kept_identity(self._folder, "wandb", lambda: secrets.token_hex(8)),
            dir=str(self._folder),
            config=dict(settings),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Log the figures as one step."""
        self._run.log(dict(values), step=round_number)

    def close(self, totals: Mapping[str, float] | None) -> None:
        """Write the totals and end the run; a stopped one counts as failed there."""
        if self._run is not None:
            self._run.summary.update(dict(totals or {}))
            self._run.finish(exit_code=0 if totals else 1)
