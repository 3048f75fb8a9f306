"""Probing a fleet before training: every client repeats its update from w_0, nothing is averaged.

Repetitions take the ordinary path, plan to upload to rebuilt update, under round numbers beyond the
run's last: fresh minibatches and directions, none of which the run will see. Each pair of client
and repetition has a round number of its own, so samples are independent even where a method shares
directions within a round.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hofl.algorithm import reconstruct
from hofl.errors import HoflError
from hofl.experiment.build import Experiment
from hofl.messages import LocalRule, Upload
from hofl.optim import SGD
from hofl.sampling.measured import LEAST, Measured, measured
from hofl.server.checks import check_upload

GRADIENT = LocalRule(optimizer=SGD(lr=1.0), local_steps=1, bottom="frozen", surrogate="none", q=0)
"""One step of length 1 at boundary 0: the difference is the minibatch gradient."""
POWER_STEPS = 6
RADIUS = 1e-2
"""Of the parameters' length: how far a gradient is differenced."""


def probe(
    experiment: Experiment,
    repetitions: int,
    smoothness: float | None = None,
    first_order: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Measure a_i, v_i, H_a, zeta^2 and (unless given) L at the start of a run.

    Args:
        experiment: the fleet, its data and its method.
        repetitions: R, samples of every client's update and gradient.
        smoothness: L, when it is known.
        first_order: take gradients for the mean updates (SGD only).
        progress: called with (probes done, probes in all).
    """
    if repetitions < LEAST:
        raise HoflError(f"repetitions must be at least {LEAST}, got {repetitions}.")
    if first_order and not isinstance(experiment.method.local.optimizer, SGD):
        raise HoflError("gradients can stand for mean updates under SGD only: method.optimizer.")
    clients, w = len(experiment.boundaries()), experiment.start
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
    return measured(
        updates,
        gradients,
        smoothness=smoothness,
        step=step,
        boundaries=experiment.boundaries(),
        normalised=isinstance(rule.optimizer, SGD),
        first_order=first_order,
    )


def largest_curvature(gradient: Callable[[Tensor], Tensor], w: Tensor, towards: Tensor) -> float:
    """The Hessian's largest absolute eigenvalue at w by power iteration, from below.

    Hv is a forward difference of gradients of one fixed function. L of Assumption 1 holds
    everywhere and for each client, so it is at least this.
    """
    radius = RADIUS * float(w.norm()) or RADIUS
    here, v = gradient(w), towards
    found = 0.0
    for _ in range(POWER_STEPS):
        if float(v.norm()) == 0:
            return found
        v = v / v.norm()
        v = (gradient(w + radius * v) - here) / radius
        found = max(found, float(v.norm()))
    return found


class _Prober:
    """Asks the clients, and counts."""

    def __init__(
        self, experiment: Experiment, total: int, progress: Callable[[int, int], None]
    ) -> None:
        self._experiment = experiment
        self._total = total
        self._progress = progress
        self._done = 0

    def update(self, number: int, client: int) -> np.ndarray:
        """Delta of the method's own local update from w_0, [d]."""
        return self._answer(number, client, self._experiment.start, None)

    def gradient(self, number: int, client: int, w: Tensor) -> np.ndarray:
        """The gradient of one minibatch at w, [d]."""
        return -self._answer(number, client, w, GRADIENT)

    def mean_gradient(self, number: int, w: Tensor) -> Tensor:
        """The gradient at w of the mean loss over one fixed minibatch of every client, [d]."""
        clients = range(len(self._experiment.boundaries()))
        rows = [torch.from_numpy(self.gradient(number, i, w)) for i in clients]
        return torch.stack(rows).mean(dim=0)

    def _answer(self, number: int, client: int, w: Tensor, rule: LocalRule | None) -> np.ndarray:
        experiment = self._experiment
        plan = experiment.plan(experiment.config.rounds + number, client, w)
        if rule is not None:
            plan = replace(plan, rule=rule, boundary=0, verify=False)
        upload = Upload.from_bytes(experiment.client.answer(plan.to_bytes()))
        check_upload(upload, plan, experiment.layout, experiment.limits)
        self._done += 1
        self._progress(self._done, self._total)
        return reconstruct(plan, upload, experiment.layout).numpy()
