"""Local optimizers: against torch.optim and autograd, and their independence of chunking."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hofl.core.errors import HoflError
from hofl.core.optim import SGD, AdamW, Optimizer, add_proximal, optimizer_from, optimizer_spec

OPTIMIZERS = [
    SGD(lr=0.05),
    SGD(lr=0.05, weight_decay=0.1),
    AdamW(lr=1e-2),
    AdamW(lr=3e-3, beta1=0.7, beta2=0.95, eps=1e-4, weight_decay=0.2),
    AdamW(lr=1e-2, beta1=0.0, beta2=0.0, weight_decay=0.0),
]
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)


def gradients(size: int, steps: int, dtype: torch.dtype) -> Tensor:
    """Gradients of very different scales, one row per step."""
    rng = torch.Generator().manual_seed(5)
    scales = 10 ** torch.empty(size).uniform_(-4, 2, generator=rng)
    return (torch.randn(steps, size, generator=rng) * scales).to(dtype)


def start(size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(6)).to(dtype)


def run_ours(optimizer: Optimizer, w: Tensor, rows: Tensor) -> Tensor:
    w = w.clone()
    state = optimizer.init(w)
    for row in rows:
        optimizer.step(w, row.clone(), state)
    return w


def run_torch(optimizer: Optimizer, w: Tensor, rows: Tensor) -> Tensor:
    parameter = torch.nn.Parameter(w.clone())
    reference: torch.optim.Optimizer
    if isinstance(optimizer, SGD):
        reference = torch.optim.SGD(
            [parameter], lr=optimizer.lr, weight_decay=optimizer.weight_decay
        )
    else:
        reference = torch.optim.AdamW(
            [parameter],
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
    for row in rows:
        parameter.grad = row.clone()
        reference.step()
    return parameter.detach()


@each_optimizer
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)], ids=["f64", "f32"]
)
def test_many_steps_end_where_torch_optim_ends(optimizer: Optimizer, dtype, tolerance: float):
    w, rows = start(301, dtype), gradients(301, 200, dtype)
    ours, reference = run_ours(optimizer, w, rows), run_torch(optimizer, w, rows)
    travelled = (reference - w).abs().max()
    assert travelled > 0.1, "the example does not move, so it shows nothing"
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


@each_optimizer
@pytest.mark.parametrize("size", [1203, 70_001])  # 70,001: large enough for torch to use threads
def test_chunking_does_not_change_a_bit(optimizer: Optimizer, size: int):
    w, rows = start(size, torch.float32), gradients(size, 7, torch.float32)
    cuts = [0, 1, 4, 11, 28, 91, 192, 1001, size]
    pieces = [run_ours(optimizer, w[a:b], rows[:, a:b]) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), run_ours(optimizer, w, rows))


@each_optimizer
def test_steps_in_a_view_change_the_view_alone(optimizer: Optimizer):
    w, rows = start(40, torch.float32), gradients(15, 3, torch.float32)
    before, part = w.clone(), w[10:25]
    state = optimizer.init(part)
    for row in rows:
        optimizer.step(part, row.clone(), state)
    assert torch.equal(w[10:25], run_ours(optimizer, before[10:25], rows))
    assert torch.equal(w[:10], before[:10])
    assert torch.equal(w[25:], before[25:])


@each_optimizer
def test_a_new_participation_starts_from_fresh_state(optimizer: Optimizer):
    w, rows = start(33, torch.float32), gradients(33, 4, torch.float32)
    first = run_ours(optimizer, w, rows)
    run_ours(optimizer, first, rows)
    assert torch.equal(run_ours(optimizer, w, rows), first)


def test_proximal_term_is_the_gradient_of_the_squared_distance():
    anchor, strength = start(50, torch.float64), 0.37
    w = (anchor + gradients(50, 1, torch.float64)[0]).requires_grad_()
    penalty = 0.5 * strength * (w - anchor).square().sum()
    expected = torch.autograd.grad(penalty, w)[0]
    base = torch.linspace(-1, 1, 50, dtype=torch.float64)
    g, point = base.clone(), w.detach().clone()
    add_proximal(g, point, anchor, strength)
    torch.testing.assert_close(g, base + expected, rtol=1e-14, atol=1e-14)
    assert torch.equal(point, w.detach())
    assert torch.equal(anchor, start(50, torch.float64))


def test_no_proximal_strength_leaves_the_gradient_alone():
    g = torch.tensor([1.0, -2.0])
    add_proximal(g, torch.tensor([float("inf"), 0.0]), torch.zeros(2), 0.0)
    assert g.tolist() == [1.0, -2.0]


@each_optimizer
def test_spec_makes_the_same_optimizer(optimizer: Optimizer):
    spec = optimizer_spec(optimizer)
    assert all(type(value) in (str, float) for value in spec.values())
    assert optimizer_from(spec) == optimizer


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "adamw", "lr": 1e-3, "clip_norm": 1.0}, "clip_norm couples .* server.max_norm"),
        ({"name": "sgd", "lr": 1e-3, "clip_norm": 1.0}, "clip_norm couples .* server.max_norm"),
        ({"name": "sgd", "lr": 1e-3, "momentum": 0.9}, "sgd has no option .*momentum.* lr, weight"),
        ({"name": "adamw", "lr": 1e-3, "amsgrad": True}, "adamw has no option .*amsgrad.*beta1"),
        ({"name": "lion", "lr": 1e-3}, "'lion'.*sgd, adamw"),
        ({"lr": 1e-3}, "None.*sgd, adamw"),
        ({"name": "sgd", "lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"name": "adamw", "lr": -1e-3}, "lr must be positive and finite, got -0.001"),
        ({"name": "adamw", "lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"name": "sgd", "lr": 0.5, "weight_decay": 2.0}, "weight_decay must lie in .*got 1.0"),
        ({"name": "sgd", "lr": 0.5, "weight_decay": -1.0}, "weight_decay must lie in .*got -0.5"),
        ({"name": "adamw", "lr": 0.5, "beta1": 1.0}, "beta1, beta2 must lie in .*got 1.0, 0.999"),
        ({"name": "adamw", "lr": 0.5, "beta2": -0.1}, "beta1, beta2 must lie in .*got 0.9, -0.1"),
    ],
)
def test_bad_option_is_refused_with_its_name(spec: dict, message: str):
    with pytest.raises(HoflError, match=message):
        optimizer_from(spec)


@pytest.mark.parametrize("spec", [{"name": "sgd"}, {"name": "sgd", "lr": "fast"}], ids=repr)
def test_missing_or_unusable_lr_is_what_the_message_is_about(spec: dict):
    with pytest.raises(HoflError, match="lr") as caught:
        optimizer_from(spec)
    assert "no option" not in str(caught.value)
