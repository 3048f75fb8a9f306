"""Measure a fleet before training: every client repeats its update from w_0, none is averaged.

Repetitions take the ordinary path, plan to upload to rebuilt update, under round numbers beyond the
run's last: fresh minibatches and directions, none of which the run will see. Each pair of client
and repetition has a round number to itself, so samples are independent even where a method shares
directions within a round.

OUT/statistics.json      the measurement; ``method.policy.statistics`` of a configuration takes it
OUT/water-filling.toml   the configuration with water-filling at the measured A and c
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from hofl.algorithm import reconstruct
from hofl.choosing.guide import CANDIDATES
from hofl.choosing.moments import LEAST, FleetMeasurement, measurement
from hofl.choosing.qp import statistical_qp
from hofl.choosing.signal import tier_signals
from hofl.core.durable import write_whole
from hofl.core.errors import HoflError
from hofl.core.optim import SGD
from hofl.experiment.build import Simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.resolved import with_policy
from hofl.experiment.runs import RunDirectory, config_text
from hofl.messages import Upload
from hofl.rules import LocalRule, Part
from hofl.sampling.policies import DimensionAware
from hofl.sampling.statistics import Statistics
from hofl.sampling.water_filling import WaterFilling, water_filling
from hofl.server.checks import check_upload

GRADIENT = LocalRule(
    optimizer=SGD(lr=1.0), local_steps=1, bottom=Part("frozen"), surrogate=Part("none"), q=0
)
"""One step of length 1 at boundary 0: the difference is the minibatch gradient."""
POWER_STEPS = 6
RADIUS = 1e-2
"""Of the parameters' length: how far a gradient is differenced."""


def measure_fleet(
    experiment: Simulation,
    repetitions: int,
    smoothness: float | None = None,
    first_order: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FleetMeasurement:
    """Measure a_i, v_i, H_a, zeta^2, the signal and (unless given) L at the experiment's start.

    Args:
        experiment: the fleet, its data and its method.
        repetitions: R, samples of every client's update and gradient.
        smoothness: L, when it is known.
        first_order: use gradients as mean updates (SGD only).
        progress: called with (probes done, probes in total).
    """
    if repetitions < LEAST:
        raise HoflError(f"repetitions must be at least {LEAST}, got {repetitions}.")
    if first_order and not isinstance(experiment.method.local.optimizer, SGD):
        raise HoflError("gradients replace mean updates under SGD only: set method.optimizer=sgd.")
    clients, w = len(experiment.boundaries()), experiment.start.w
    total = 2 * repetitions * clients
    total += 0 if smoothness is not None else (POWER_STEPS + 1) * clients
    prober = _Prober(experiment, total, progress)
    updates = np.empty((clients, repetitions, len(w)), dtype=np.float32)
    gradients = np.empty_like(updates)
    rule = experiment.method.local
    step = rule.optimizer.lr * rule.local_steps
    for i in range(clients):
        for r in range(repetitions):
            number = 2 * (r * clients + i)
            updates[i, r] = prober.update(number, i) / -step
            gradients[i, r] = prober.gradient(number + 1, i, w)
    if smoothness is None:
        towards = torch.from_numpy(gradients.mean(axis=(0, 1)))
        smoothness = largest_curvature(lambda at: prober.mean_gradient(total, at), w, towards)
    boundaries = experiment.boundaries()
    measured = measurement(
        updates,
        gradients,
        smoothness=smoothness,
        step=step,
        boundaries=boundaries,
        normalised=isinstance(rule.optimizer, SGD),
        first_order=first_order,
    )
    signals = tier_signals(gradients, boundaries, experiment.layout.cut)
    return replace(measured, round=experiment.start.round, signals=signals)


def advanced(experiment: Simulation, path: Path) -> Simulation:
    """Return the experiment with w_t of a run's latest checkpoint as its start."""
    state = load_state(RunDirectory.open(path), experiment.layout.digest)
    if state is None:
        raise HoflError(f"{path} has no checkpoint yet: train it first.")
    return replace(experiment, start=state)


def largest_curvature(gradient: Callable[[Tensor], Tensor], w: Tensor, towards: Tensor) -> float:
    """Return the Hessian's largest absolute eigenvalue at w by power iteration, from below.

    Hv is a forward difference of gradients of one fixed function. L of Assumption 1 holds
    everywhere and for each client, so it is at least this.
    """
    radius = RADIUS * float(w.norm()) or RADIUS
    here, v = gradient(w), towards
    largest = 0.0
    for _ in range(POWER_STEPS):
        if float(v.norm()) == 0:
            return largest
        v = v / v.norm()
        v = (gradient(w + radius * v) - here) / radius
        largest = max(largest, float(v.norm()))
    return largest


class _Prober:
    """Probes clients and reports progress."""

    def __init__(
        self, experiment: Simulation, total: int, progress: Callable[[int, int], None]
    ) -> None:
        self._experiment = experiment
        self._total = total
        self._progress = progress
        self._done = 0

    def update(self, number: int, client: int) -> np.ndarray:
        """Return Delta of the method's local update from w_0, [d]."""
        return self._answer(number, client, self._experiment.start.w, None)

    def gradient(self, number: int, client: int, w: Tensor) -> np.ndarray:
        """Return the gradient of one minibatch at w, [d]."""
        return -self._answer(number, client, w, GRADIENT)

    def mean_gradient(self, number: int, w: Tensor) -> Tensor:
        """Return the gradient at w of the mean loss over one fixed minibatch per client, [d]."""
        clients = range(len(self._experiment.boundaries()))
        rows = [torch.from_numpy(self.gradient(number, i, w)) for i in clients]
        return torch.stack(rows).mean(dim=0)

    def _answer(self, number: int, client: int, w: Tensor, rule: LocalRule | None) -> np.ndarray:
        experiment = self._experiment
        number += experiment.rounds
        state = replace(experiment.start, w=w, round=number)
        plan = experiment.plan(state, client, experiment.present(number))
        if rule is not None:
            plan = replace(plan, rule=rule, boundary=0, verify=False)
        upload = Upload.from_bytes(experiment.client.answer(plan.to_bytes()))
        check_upload(upload, plan, experiment.layout, experiment.limits)
        self._done += 1
        self._progress(self._done, self._total)
        return reconstruct(plan, upload, experiment.layout).numpy()


@dataclass(frozen=True)
class PolicyRow:
    """One policy: its shares [N], and the program's and the relaxation's value at them."""

    name: str
    p: np.ndarray
    objective: float
    relaxed: float


def compare_policies(
    measured: FleetMeasurement, experiment: Simulation, floor: float
) -> tuple[list[PolicyRow], list[str]]:
    """Return the beta policy, water-filling and the QP, and notes on how to read the figures.

    A policy that was fitted to noisy statistics looks better on them than it is. So shares fitted
    to one half of the repetitions are judged by the other half, both ways, and the values averaged;
    the shares shown are those of all repetitions.
    """
    cohort, present = experiment.cohort_size, experiment.present(0)
    whole, notes = measured.statistics, []
    pairs = list(permutations(measured.halves, 2)) or [(whole, whole)]
    if not measured.halves:
        notes.append(
            "J flatters water-filling and the QP, which were fitted to the same repetitions; "
            f"with {2 * LEAST} or more of them, halves judge each other"
        )

    def without_statistics(beta: float) -> Callable[[Statistics], np.ndarray]:
        p = experiment.marginals(0, present, DimensionAware(beta))
        return lambda _: p

    policies = {f"beta {beta:g}": without_statistics(beta) for beta in CANDIDATES}
    policies["water-filling"] = lambda s: water_filling(s.weight, s.costs(cohort), cohort, floor)
    policies["statistical QP"] = lambda s: statistical_qp(s, cohort, floor)
    rows = []
    for name, fitted in policies.items():
        try:
            judged = [(judge, fitted(fit)) for fit, judge in pairs]
            value = fmean(judge.objective(p, cohort) for judge, p in judged)
            bound = fmean(judge.relaxed(p, cohort) for judge, p in judged)
            rows.append(PolicyRow(name, fitted(whole), value, bound))
        except HoflError as error:  # the solver is missing, or failed
            notes.append(str(error))
    return rows, notes


def save_measurement(
    measured: FleetMeasurement, experiment: Simulation, floor: float, out: Path
) -> None:
    """Write both files into the new folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "statistics.json", measured.to_json() + "\n")
    statistics = measured.statistics
    costs = tuple(statistics.costs(experiment.cohort_size).tolist())
    head = (
        "# Water-filling at measured statistics, by hofl beta measure: weight = 2 N H_a and\n"
        f"# costs = (L h / K) (v_i + 2 ||a_i - mean||^2) from {measured.repetitions} repetitions."
        "\n\n"
    )
    filled = with_policy(experiment.config, WaterFilling(statistics.weight, floor, costs))
    write_whole(out / "water-filling.toml", head + config_text(filled))
