"""TensorBoard: event files in RUN/tensorboard; ``tensorboard --logdir runs`` shows all runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard:
    """Writes event files, one per start of the run."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._writer: SummaryWriter | None = None

    def start(self, settings: Mapping[str, Any], reached: int) -> None:
        """Start an event file that voids the rounds of earlier ones from ``reached`` on."""
        self._writer = SummaryWriter(str(self._folder), purge_step=reached)
        lines = (f"    {key} = {value!r}" for key, value in settings.items())  # Markdown's code
        self._writer.add_text("configuration", "\n".join(lines), reached)

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Add one scalar per figure."""
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_number)
        self._writer.flush()  # a round takes seconds to minutes: show it at once

    def close(self, totals: Mapping[str, float] | None) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
