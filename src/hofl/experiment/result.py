"""A finished run, as Python sees it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.experiment.publish import adapter_of_run
from hofl.experiment.records import RoundRecord, RunSummary
from hofl.experiment.runs import RunDirectory


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        path: the run directory.
        record: its summary, typed.
    """

    path: Path
    record: RunSummary

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``."""
        return self.record.to_json()

    @property
    def rounds(self) -> list[RoundRecord]:
        """The record of every round; round 0 is the start."""
        return RunDirectory(self.path).metrics()

    @property
    def adapter(self) -> Path:
        """Folder of the trained adapter."""
        return self.path / "adapter"

    def load(self) -> Any:
        """Load the trained model, by ``transformers`` and ``peft`` alone.

        Raises:
            HoflError: a file of the adapter is not as it was written.
        """
        from hofl.models.adapters import load_trained
        from hofl.models.loading import resolve_reference

        adapter = adapter_of_run(self.path)
        return load_trained(adapter, resolve_reference(RunDirectory(self.path).config().model.name))
