"""The levers that ``benchmarks/levers.py`` measures are what they are called."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy

from hofl.core.directions import DirectionKey
from hofl.core.layout import Layout
from hofl.core.optim import SGD
from hofl.local.top import LocalTop
from hofl.messages import RoundPlan
from hofl.rules import LocalRule
from support.models import batch, tiny
from support.steps import contribution, site_at

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from lever_parts import (
    Centred,
    ServerStep,
    Stepping,
    adam,
    centring_bias,
    longer,
    momentum,
)

LAYOUT = Layout(("a",), ((3, 4),), (0,), 1)


def examples(classes: int, rows: int) -> tuple[Tensor, Tensor]:
    """Scores that lean to one class, and labels with every class."""
    rng = torch.Generator().manual_seed(classes)
    lean = 3 * torch.randn(classes, generator=rng)
    scores = torch.randn(rows, classes, generator=rng) + lean
    return scores, torch.arange(rows) % (classes + 1) % classes


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_centring_bias_makes_the_cross_entropy_least(classes: int) -> None:
    scores, targets = examples(classes, 11)

    def loss(bias: np.ndarray) -> float:
        shifted = scores.double() + torch.tensor(np.append(bias, -bias.sum()))
        return cross_entropy(shifted, targets).item()

    found = minimize(loss, np.zeros(classes - 1), method="BFGS", options={"gtol": 1e-8}).x
    expected = np.append(found, -found.sum())
    np.testing.assert_allclose(centring_bias(scores, targets).numpy(), expected, atol=1e-4)
    predicted = (scores + centring_bias(scores, targets)).softmax(1).mean(0)
    assert torch.allclose(predicted, torch.bincount(targets).double() / 11, atol=1e-6)


def test_classes_that_a_batch_lacks_leave_the_bias_finite() -> None:
    scores, _ = examples(4, 6)
    assert not centring_bias(scores, torch.full((6,), 2)).any()
    bias = centring_bias(scores, torch.tensor([0, 0, 0, 2, 2, 0]))
    assert not bias[[1, 3]].any()
    got = (scores + bias).softmax(1).mean(0)
    assert got[0] / got[2] == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("whole", [False, True])
def test_the_centred_delta_is_the_gradient_at_the_bias(whole: bool) -> None:
    model, boundary = tiny("llama"), 2
    data = batch(4, rows=6)
    site = site_at(model, boundary, DirectionKey(1, 0, 0), 0)
    inputs = model.inputs(data.texts)
    z = model.forward(inputs.hidden, inputs, 0, boundary).detach().requires_grad_()
    last = model.forward(z, inputs, boundary, model.num_blocks)
    scores = model.head(last, data).words(data.goal.candidates)
    bias = centring_bias(scores.detach(), data.goal.targets).float()
    top = model.parameters_in(range(boundary, model.num_blocks))
    plain, shifted = (cross_entropy(s, data.goal.targets) for s in (scores, scores + bias))
    (delta,) = torch.autograd.grad(shifted, z, retain_graph=True)
    (uncentred,) = torch.autograd.grad(plain, z, retain_graph=True)
    gradient = torch.autograd.grad(shifted if whole else plain, top)
    feedback = Centred(whole)(site, data, LocalTop.open(site, data, inputs), z.detach())
    if not whole:
        delta = delta * (uncentred.norm() / delta.norm())
    assert torch.allclose(feedback.delta, delta, rtol=1e-3, atol=1e-6)
    flat = torch.cat([g.flatten() for g in gradient])
    assert torch.allclose(feedback.top_gradient, flat, rtol=1e-3, atol=1e-6)


def plan_at(t: int) -> RoundPlan:
    return RoundPlan(
        run="levers",
        round=t,
        client=0,
        boundary=0,
        key=DirectionKey(0, t, 0),
        seed=0,
        layout=LAYOUT.digest,
        rule=LocalRule(optimizer=SGD(lr=1.0)),
        w=torch.zeros(LAYOUT.size),
    )


@pytest.mark.parametrize(
    ("step", "oracle"),
    [
        (longer(2.0), lambda w: torch.optim.SGD(w, lr=2.0)),
        (momentum(0.5, 0.3), lambda w: torch.optim.SGD(w, lr=0.3, momentum=0.5)),
        (adam(0.02), lambda w: torch.optim.Adam(w, lr=0.02, betas=(0.9, 0.99), eps=1e-4)),
    ],
    ids=["longer", "momentum", "adam"],
)
def test_a_step_of_the_server_is_torchs_on_the_negative_update(step: ServerStep, oracle) -> None:
    rng = torch.Generator().manual_seed(0)
    w = torch.zeros(LAYOUT.size, dtype=torch.float64, requires_grad=True)
    optimizer, mine = oracle([w]), torch.zeros(LAYOUT.size, dtype=torch.float64)
    for t in range(5):
        deltas = [torch.randn(LAYOUT.size, generator=rng) for _ in range(3)]
        for _ in range(2):  # an attempt that is combined again leaves no trace
            total = Stepping(LAYOUT, step)
            for delta in deltas:
                total.add(contribution(replace(plan_at(t), run=f"{id(step)}"), delta))
            moved = total.result()
        mine += moved
        w.grad = -torch.stack(deltas).double().mean(0)
        optimizer.step()
    assert torch.allclose(mine, w.detach(), rtol=1e-6)
