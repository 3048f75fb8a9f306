"""The client's whole local trajectory against a slow loop written from the paper.

The loop knows nothing of segments, joint passes or replay: gradients come from autograd on the
peft model's own forward pass, steps from ``torch.optim``. Only the directions are hofl's.
"""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from hofl.algorithm import client_update, reconstruct
from hofl.core.directions import DirectionKey, direction
from hofl.core.optim import SGD, AdamW
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.messages import RoundPlan, Upload
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from support.models import batch, parts, slot_logits, tiny

KEY = DirectionKey(seed=11, round=3, stream=1)
STEPS, DIRECTIONS = 3, 2  # E, q
OURS = {
    "sgd": SGD(lr=0.05),
    "sgd-decay": SGD(lr=0.05, weight_decay=0.1),
    # With a smaller eps a gradient near zero becomes lr times the sign of its rounding.
    "adamw-decay": AdamW(lr=0.01, weight_decay=0.1, eps=1e-3),
}
# How far rounding may carry w: processors sum a gradient of this tiny model differently by up to
# 2e-7, and AdamW turns a difference g near zero into lr / eps * g in each of the three steps.
ATOL = {"sgd": 2e-6, "sgd-decay": 2e-6, "adamw-decay": 1e-5}
EXECUTIONS = [
    Execution(micro_batch=1),
    Execution(micro_batch=2),
    Execution(checkpoint=1),
    Execution(checkpoint=2),
    Execution(micro_batch=2, checkpoint=3),
]
TORCHS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "sgd-decay": lambda parameters: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.1),
    "adamw-decay": lambda parameters: torch.optim.AdamW(
        parameters, lr=0.01, weight_decay=0.1, eps=1e-3
    ),
}


@dataclass
class Trajectory:
    """Where the slow loop ended: the parameters [d], its scalars [E, q] and its losses [E]."""

    w: torch.Tensor
    scalars: torch.Tensor
    losses: list[float]


def slow_loop(family: str, boundary: int, optimizer: str, proximal: float) -> Trajectory:
    module = tiny(family).module
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    start = [p.detach().clone() for p in parameters]
    blocks = [int(re.search(r"\.layers\.(\d+)\.", name)[1]) for name, _ in named]
    bottom = [i for i, block in enumerate(blocks) if block < boundary]
    top = [i for i, block in enumerate(blocks) if block >= boundary]
    stepper = TORCHS[optimizer](parameters)
    scalars, losses = torch.zeros(STEPS, DIRECTIONS), []
    for e in range(STEPS):
        data = batch(e)
        logits = slot_logits(module, data)
        loss = cross_entropy(logits[:, data.goal.candidates], data.goal.targets)
        penalty = sum((parameters[i] - start[i]).square().sum() for i in top)
        grads = torch.autograd.grad(loss + proximal / 2 * penalty, parameters)
        for i in top:
            parameters[i].grad = grads[i]
        for i in bottom:
            parameters[i].grad = proximal * (parameters[i].detach() - start[i])
        for j in range(DIRECTIONS):
            u = {i: whole(e, j, i, parameters[i]) for i in bottom}
            s = sum((grads[i].double() * u[i].double()).sum() for i in bottom)
            for i in bottom:
                parameters[i].grad += s.float() * u[i] / DIRECTIONS
            scalars[e, j] = s
        stepper.step()
        losses.append(loss.item())
    return Trajectory(torch.cat([p.detach().reshape(-1) for p in parameters]), scalars, losses)


def whole(step: int, j: int, index: int, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(direction(KEY, step, j, index, like.numel())).view_as(like)


def client(
    family: str,
    boundary: int,
    optimizer: str,
    proximal: float,
    execution: Execution = PLAIN,
) -> tuple[SplitModel, RoundPlan, Upload]:
    model = tiny(family)
    rule = LocalRule(
        optimizer=OURS[optimizer],
        local_steps=STEPS,
        q=DIRECTIONS,
        estimator="forward-mode",
        proximal=proximal,
    )
    plan = RoundPlan(
        run="test",
        round=KEY.round,
        client=KEY.stream,
        key=DirectionKey(KEY.seed, KEY.round, KEY.stream),
        seed=KEY.seed,
        boundary=boundary,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
    )
    batches = [parts(batch(e), execution.micro_batch) for e in range(STEPS)]
    upload = client_update(model, plan, batches, LocalParts.of(rule, boundary), execution)
    return model, plan, upload


@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("boundary", [1, 3])
@pytest.mark.parametrize("optimizer", OURS)
@pytest.mark.parametrize("proximal", [0.0, 1.0])
def test_client_update_follows_a_slow_loop_of_autograd_and_torchs_optimizers(
    family: str, boundary: int, optimizer: str, proximal: float
) -> None:
    expected = slow_loop(family, boundary, optimizer, proximal)
    model, plan, upload = client(family, boundary, optimizer, proximal)
    cut = model.layout.cut(boundary)
    moved = (model.w - plan.w).abs()
    assert 0 < cut < model.layout.size
    assert moved[:cut].mean() > 1e-4, "the bottom must have moved"
    assert moved[cut:].mean() > 1e-4, "the top must have moved"
    torch.testing.assert_close(model.w, expected.w, rtol=0, atol=ATOL[optimizer])
    torch.testing.assert_close(upload.scalars, expected.scalars, rtol=1e-4, atol=1e-5)
    assert upload.metrics.loss == pytest.approx(sum(expected.losses) / STEPS, rel=1e-5)
    delta = reconstruct(plan, upload, model.layout)
    torch.testing.assert_close(delta, expected.w - plan.w, rtol=0, atol=ATOL[optimizer])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("boundary", [0, 1, 3])
def test_client_update_follows_the_slow_loop_however_it_saves_memory(
    execution: Execution, boundary: int
) -> None:
    expected = slow_loop("opt", boundary, "adamw-decay", 0.0)
    model, plan, upload = client("opt", boundary, "adamw-decay", 0.0, execution)
    torch.testing.assert_close(model.w, expected.w, rtol=0, atol=ATOL["adamw-decay"])
    if boundary:
        torch.testing.assert_close(upload.scalars, expected.scalars, rtol=1e-4, atol=1e-5)
    assert upload.metrics.loss == pytest.approx(sum(expected.losses) / STEPS, rel=1e-5)
    assert torch.equal(reconstruct(plan, upload, model.layout), model.w - plan.w)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_reconstruction_under_plain_sgd_is_the_closed_form_of_equation_9(family: str) -> None:
    """Delta_ZO = -(eta / q) sum_e sum_j s u, summed here in float64."""
    boundary = 2
    model, plan, upload = client(family, boundary, "sgd", 0.0)
    bottom = [model.parameter(c) for block in model.layout.by_block[:boundary] for c in block]
    total = torch.zeros(model.layout.cut(boundary), dtype=torch.float64)
    for e in range(STEPS):
        for j in range(DIRECTIONS):
            u = torch.cat([whole(e, j, i, p).reshape(-1) for i, p in enumerate(bottom)])
            total += upload.scalars[e, j].double() * u.double()
    closed = -OURS["sgd"].lr / DIRECTIONS * total
    delta = reconstruct(plan, upload, model.layout)[: len(closed)].double()
    assert closed.abs().mean() > 1e-4
    torch.testing.assert_close(delta, closed, rtol=0, atol=3e-7)


def test_every_step_and_every_direction_is_drawn_afresh() -> None:
    """Otherwise the two tests above could agree on a repeated direction."""
    like = torch.zeros(4096)
    drawn = torch.stack([whole(e, j, 0, like) for e in range(STEPS) for j in range(DIRECTIONS)])
    correlation = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert correlation.abs().max() < 5 / len(like) ** 0.5


def test_another_client_of_the_round_walks_another_way() -> None:
    model, plan, upload = client("llama", 2, "sgd", 0.0)
    here = model.w.clone()
    other = replace(plan, client=plan.client + 1, key=replace(plan.key, stream=2))
    batches = [[batch(e)] for e in range(STEPS)]
    elsewhere = client_update(model, other, batches, LocalParts.of(plan.rule, plan.boundary))
    assert not torch.allclose(upload.scalars, elsewhere.scalars, rtol=0.01)
    assert (model.w - here)[: model.layout.cut(2)].abs().mean() > 1e-4
