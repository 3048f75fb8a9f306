"""Policies side by side on measured statistics, and the files that a measurement leaves.

OUT/statistics.json      what was measured; ``method.statistics`` of a configuration takes it
OUT/water-filling.toml   the configuration with water-filling at the measured A and c
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hofl.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import config_text, write_whole
from hofl.experiment.tasks import fleet_seed
from hofl.sampling.guidance import CANDIDATES
from hofl.sampling.measured import Measured
from hofl.sampling.policies import DimensionAware
from hofl.sampling.statistical_qp import statistical_qp
from hofl.sampling.water_filling import water_filling


@dataclass(frozen=True)
class Row:
    """One policy: its shares [N], and what the program and its relaxation say of them."""

    name: str
    p: np.ndarray
    objective: float
    relaxed: float


def compared(found: Measured, experiment: Experiment, floor: float) -> tuple[list[Row], str | None]:
    """The beta policy, water-filling and the QP, and why the QP is missing if it is."""
    statistics, config = found.statistics, experiment.config
    cohort, seed, note = config.fleet.cohort, fleet_seed(config), None
    shares = {
        f"beta {beta:g}": DimensionAware(beta).marginals(experiment.scores(), cohort, seed)
        for beta in CANDIDATES
    }
    costs = statistics.costs(cohort)
    shares["water-filling"] = water_filling(statistics.weight, costs, cohort, floor)
    try:
        shares["statistical QP"] = statistical_qp(statistics, cohort, floor)
    except HoflError as error:
        note = str(error)
    rows = [
        Row(name, p, statistics.objective(p, cohort), statistics.relaxed(p, cohort))
        for name, p in shares.items()
    ]
    return rows, note


def save(found: Measured, config: ExperimentConfig, floor: float, out: Path) -> None:
    """Write both files into the new folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "statistics.json", found.to_json() + "\n")
    statistics = found.statistics
    costs = tuple(statistics.costs(config.fleet.cohort).tolist())
    options = {"policy": "water-filling", "weight": statistics.weight, "floor": floor}
    unset = {"beta": None, "beta_schedule": None, "beta_end": None, "min_participations": None}
    method = config.method.model_copy(update={**unset, **options, "costs": costs})
    head = (
        "# Water-filling at measured statistics, by hofl beta measure: weight = 2 N H_a and\n"
        f"# costs = (L h / K) (v_i + 2 ||a_i - mean||^2) from {found.repetitions} repetitions.\n\n"
    )
    text = config_text(config.model_copy(update={"method": method}))
    write_whole(out / "water-filling.toml", head + text)
