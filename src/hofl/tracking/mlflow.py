"""MLflow: where its own settings say (``MLFLOW_TRACKING_URI``), otherwise its local store.

The experiment is ``hofl``, or what ``MLFLOW_EXPERIMENT_NAME`` says.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from hofl.tracking.trackers import kept_identity

LIMIT = 100
"""Parameters that MLflow takes at a time."""
LENGTH = 500
"""Characters of a parameter that every store of MLflow takes."""


class MLflow:
    """Logs to one run of MLflow, also when the run is resumed; uses no global state of MLflow."""

    def __init__(self, run: Path) -> None:
        self._folder = run
        self._client = MlflowClient()
        self._id = ""

    def start(self, settings: Mapping[str, Any], reached: int) -> None:
        """Open the run by the identity that MLflow gave it first."""
        self._id = kept_identity(self._folder, "mlflow", self._created)
        self._client.update_run(self._id, status="RUNNING")
        if not reached:
            params = [Param(key, str(value)[:LENGTH]) for key, value in settings.items()]
            for first in range(0, len(params), LIMIT):
                self._client.log_batch(self._id, params=params[first : first + LIMIT])

    def _created(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hofl")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"hofl.run": str(self._folder.absolute())}
        return self._client.create_run(
            experiment, tags=tags, run_name=self._folder.name
        ).info.run_id

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Log the figures as one step."""
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, round_number) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, totals: Mapping[str, float] | None) -> None:
        """Write the totals as tags and end the run; a stopped one is KILLED there."""
        if self._id:
            tags = [RunTag(name, f"{value:g}") for name, value in (totals or {}).items()]
            self._client.log_batch(self._id, tags=tags)
            self._client.set_terminated(self._id, "FINISHED" if totals else "KILLED")
