"""Rounds of a method by hand, and slow re-statements of the published systems, in plain torch.

A re-statement sees a loss as a function of the flat parameters, and the normal draws; everything
else is written out from the paper or the authors' code, with no function of the package.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hofl.algorithm import reconstruct, server_round
from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey, Gaussian
from hofl.core.optim import SGD
from hofl.methods import Method
from hofl.models.split import SplitModel
from hofl.server.aggregate import aggregation_of
from hofl.server.state import Contribution, ServerState, keeper_of
from support.models import BLOCKS, batch
from support.steps import loss_of, participate, plan_for, whole_direction

Loss = Callable[[Tensor], float]
"""Parameters [d] -> loss of one client's batch."""
Draw = Callable[[int, int], Tensor]
"""(local step, j) -> normal direction [d]."""


def quickly(method: Method, lr: float = 0.05, mu: float = 1e-2, steps: int = 2) -> Method:
    """The method with SGD of a large step and a large radius: a trajectory far above rounding."""
    local = replace(method.local, optimizer=SGD(lr=lr), mu=mu, local_steps=steps)
    return replace(method, local=local)


def start_of(method: Method, model: SplitModel) -> ServerState:
    return ServerState(model.w.clone(), 0, keeper_of(method.local.directions, model.layout).start())


def one_round(
    method: Method,
    model: SplitModel,
    state: ServerState,
    cohort: Sequence[int],
    w_0: Tensor | None = None,
) -> tuple[ServerState, list[Contribution]]:
    """A round of these clients through the wire; client i's batch of step e is ``batch_at``."""
    boundary = int(method.boundary(np.array([2]), BLOCKS)[0])
    shared, added = method.local.shares_directions, []
    for client in cohort:
        plan = plan_for(
            model,
            boundary,
            method.local,
            round=state.round,
            client=client,
            key=key_at(state.round, None if shared else client),
            w=state.w,
            vectors=state.vectors,
            verify=True,
        )
        upload, _ = participate(model, plan, batches=batch_at)
        delta = reconstruct(plan, upload, model.layout)
        added.append(Contribution(plan, upload, delta, 1 / len(cohort), len(cohort), 1, w_0))
    total = aggregation_of(method.aggregation, model.layout)
    keeper = keeper_of(method.local.directions, model.layout)
    return server_round(state, added, total, keeper), added


def key_at(round_number: int, client: int | None) -> DirectionKey:
    """The key of a participation; None is the whole cohort's."""
    return DirectionKey(17, round_number, 0 if client is None else client + 1)


def batch_at(client: int, round_number: int, step: int) -> Batch:
    return batch(100 * client + 10 * round_number + step)


def loss_in(model: SplitModel, client: int, round_number: int, step: int) -> Loss:
    """The loss of a client's batch by the peft model's own forward pass."""

    def loss(w: Tensor) -> float:
        model.load(w.float())
        with torch.no_grad():
            return loss_of(model, batch_at(client, round_number, step)).double().item()

    return loss


def draws(model: SplitModel, key: DirectionKey) -> Draw:
    """The standard normal draws of a participation, float64 [d]."""
    plain = Gaussian(key, model.layout)
    return lambda step, j: whole_direction(plain, step, j).double()


def slow_hiso(
    w: Tensor, hessian: Tensor, losses: list[list[Loss]], u: Draw, lr: float, mu: float, nu: float
) -> tuple[Tensor, Tensor]:
    """One round of HiSo with five directions; ``losses`` by client and local step."""
    q = 5
    scalars = []
    for client in losses:
        x, rows = w.clone(), []
        for step, loss in enumerate(client):
            scaled = [u(step, j) / hessian.sqrt() for j in range(q)]
            rows.append([(loss(x + mu * v) - loss(x)) / mu for v in scaled])
            x = x - lr * sum(s * v for s, v in zip(rows[-1], scaled, strict=True)) / q
        scalars.append(rows)
    mean = torch.tensor(scalars, dtype=torch.float64).mean(0)  # [steps, q]
    for step, row in enumerate(mean):
        moved = sum(s * u(step, j) / hessian.sqrt() for j, s in enumerate(row)) / q
        w = w - lr * moved
    return w, (1 - nu) * hessian + nu * (moved**2 + 1e-8)


def slow_decomfl(
    w: Tensor, losses: list[list[Loss]], u: Draw, lr: float, mu: float
) -> tuple[Tensor, Tensor]:
    """One round of DeComFL with five directions; returns w and the mean scalars [steps, 5]."""
    q, scalars = 5, []
    for client in losses:
        x, rows = w.clone(), []
        for step, loss in enumerate(client):
            rows.append([(loss(x + mu * u(step, j)) - loss(x)) / mu for j in range(q)])
            x = x - lr * sum(s * u(step, j) for j, s in enumerate(rows[-1])) / q
        scalars.append(rows)
    mean = torch.tensor(scalars, dtype=torch.float64).mean(0)
    for step, row in enumerate(mean):
        w = w - lr * sum(s * u(step, j) for j, s in enumerate(row)) / q
    return w, mean


def slow_fedzo(w: Tensor, losses: list[tuple[list[Loss], Draw]], lr: float, mu: float) -> Tensor:
    """One round of FedZO with 20 directions v on the unit sphere; each client has its own draws."""
    ends = []
    for client, u in losses:
        x = w.clone()
        for step, loss in enumerate(client):
            total = torch.zeros_like(x)
            for n in range(20):
                v = u(step, n) / u(step, n).norm()
                total += len(x) / (mu * 20) * (loss(x + mu * v) - loss(x)) * v
            x = x - lr * total
        ends.append(x)
    return torch.stack(ends).mean(0)


def slow_mezo(w: Tensor, losses: list[Loss], u: Draw, lr: float, eps: float) -> Tensor:
    """MeZO: per step one direction, [L(w + eps z) - L(w - eps z)] / (2 eps), SGD along z."""
    for step, loss in enumerate(losses):
        z = u(step, 0)
        w = w - lr * (loss(w + eps * z) - loss(w - eps * z)) / (2 * eps) * z
    return w


def slow_fedkseed(
    start: Tensor,
    totals: Tensor,
    clients: list[tuple[list[Loss], list[int]]],
    z: Tensor,
    lr: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """One round of FedKSeed; of each client the losses by step and the candidates it drew.

    Returns the next w and the next sum of scalars of every candidate z [pool, d].
    """
    added = torch.zeros_like(totals)
    for losses, drawn in clients:
        w = start - lr * totals @ z
        for loss, c in zip(losses, drawn, strict=True):
            g = (loss(w + eps * z[c]) - loss(w - eps * z[c])) / (2 * eps)
            w = w - lr * g * z[c]
            added[c] += g / len(clients)
    totals = totals + added
    return start - lr * totals @ z, totals
