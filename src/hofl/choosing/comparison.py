"""Policies side by side on measured statistics, and the files that a measurement leaves.

OUT/statistics.json      what was measured; ``method.statistics`` of a configuration takes it
OUT/water-filling.toml   the configuration with water-filling at the measured A and c
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from statistics import fmean

import numpy as np

from hofl.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.runs import config_text, write_whole
from hofl.experiment.tasks import fleet_seed
from hofl.sampling.guidance import CANDIDATES
from hofl.sampling.measured import LEAST, Measured
from hofl.sampling.policies import DimensionAware
from hofl.sampling.statistical_qp import Statistics, statistical_qp
from hofl.sampling.water_filling import water_filling


@dataclass(frozen=True)
class Row:
    """One policy: its shares [N], and what the program and its relaxation say of them."""

    name: str
    p: np.ndarray
    objective: float
    relaxed: float


def compared(found: Measured, experiment: Experiment, floor: float) -> tuple[list[Row], list[str]]:
    """The beta policy, water-filling and the QP, and what a reader must know about the figures.

    A policy that was fitted to noisy statistics looks better on them than it is. So shares fitted
    to one half of the repetitions are judged by the other half, both ways, and the values averaged;
    the shares shown are those of all repetitions.
    """
    cohort, seed = experiment.config.fleet.cohort, fleet_seed(experiment.config)
    whole, notes = found.statistics, []
    pairs = list(permutations(found.halves, 2)) or [(whole, whole)]
    if not found.halves:
        notes.append(
            "J flatters water-filling and the QP, which were fitted to the same repetitions; "
            f"with {2 * LEAST} or more of them, halves judge each other"
        )
    policies: dict[str, Callable[[Statistics], np.ndarray]] = {
        f"beta {beta:g}": partial(_tilted, DimensionAware(beta), experiment.scores(), cohort, seed)
        for beta in CANDIDATES
    }
    policies["water-filling"] = lambda s: water_filling(s.weight, s.costs(cohort), cohort, floor)
    policies["statistical QP"] = lambda s: statistical_qp(s, cohort, floor)
    rows = []
    for name, fitted in policies.items():
        try:
            judged = [(judge, fitted(fit)) for fit, judge in pairs]
            value = fmean(judge.objective(p, cohort) for judge, p in judged)
            bound = fmean(judge.relaxed(p, cohort) for judge, p in judged)
            rows.append(Row(name, fitted(whole), value, bound))
        except HoflError as error:  # no solver, or it gave up
            notes.append(str(error))
    return rows, notes


def _tilted(
    policy: DimensionAware, scores: np.ndarray, cohort: int, seed: int, _: Statistics
) -> np.ndarray:
    """The beta policy asks no statistics."""
    return policy.marginals(scores, cohort, seed)


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
