"""DeComFL, FedZO and MeZO against their algorithms written out, three rounds of tiny models."""

import numpy as np
import pytest
import torch

from hofl.core.directions import DirectionKey, Sphere
from hofl.core.layout import Layout
from hofl.methods import METHODS, method
from support.family import (
    draws,
    key_at,
    loss_in,
    one_round,
    quickly,
    slow_decomfl,
    slow_fedzo,
    slow_mezo,
    start_of,
)
from support.models import tiny
from support.steps import whole_direction

FAMILIES = pytest.mark.parametrize("family", ["opt", "llama"])


def close(w: torch.Tensor, expected: torch.Tensor, start: torch.Tensor) -> bool:
    """Within a hundredth of the way that was gone."""
    return bool((w - expected).norm() < 0.01 * (expected - start).norm())


@FAMILIES
def test_decomfl(family: str) -> None:
    model, chosen = tiny(family), quickly(METHODS["decomfl-sgd"])
    state = start_of(chosen, model)
    start = w = state.w.double()
    for t in range(3):
        state, _ = one_round(chosen, model, state, [0, 1])
        losses = [[loss_in(model, client, t, step) for step in range(2)] for client in (0, 1)]
        w, _ = slow_decomfl(w, losses, draws(model, key_at(t, None)), lr=0.05, mu=1e-2)
        assert close(state.w, w, start)


@FAMILIES
def test_fedzo_sends_vectors_and_nothing_else(family: str) -> None:
    """The radius is the length of the whole step here: 0.3 moves a coordinate by about 0.01."""
    model, chosen = tiny(family), quickly(METHODS["fedzo"], mu=0.3, steps=1)
    state = start_of(chosen, model)
    start = w = state.w.double()
    for t in range(3):
        state, added = one_round(chosen, model, state, [0, 1])
        for each in added:
            assert each.upload.scalars.numel() == 0
            assert each.upload.difference.shape == (model.layout.size,)
        losses = [([loss_in(model, i, t, 0)], draws(model, key_at(t, i))) for i in (0, 1)]
        w = slow_fedzo(w, losses, lr=0.05, mu=0.3)
        assert close(state.w, w, start)


@FAMILIES
def test_mezo_with_one_client_is_the_original(family: str) -> None:
    model, chosen = tiny(family), quickly(METHODS["mezo"], steps=3)
    start = start_of(chosen, model)
    state, _ = one_round(chosen, model, start, [0])
    losses = [loss_in(model, 0, 0, step) for step in range(3)]
    w = slow_mezo(start.w.double(), losses, draws(model, key_at(0, 0)), lr=0.05, eps=1e-2)
    assert close(state.w, w, start.w)


def test_sphere_directions_have_length_one_and_their_factor_makes_the_estimate_unbiased() -> None:
    layout = Layout(("a", "b"), ((3, 2), (4,)), (0, 1), 2)
    rule = Sphere(DirectionKey(1, 2, 3), layout)
    u = torch.stack([whole_direction(rule, step, j) for step in range(500) for j in range(8)])
    assert torch.allclose(u.norm(dim=1), torch.ones(len(u)), atol=1e-6)
    second = rule.factor * (u.T @ u) / len(u)
    assert rule.factor == 10
    assert (second - torch.eye(10)).abs().max() < 0.1
    g = np.arange(10.0)
    scalars = (u.numpy() @ g).astype(np.float32)
    estimate = rule.factor * (scalars[:, None] * u.numpy()).mean(0)
    assert np.abs(estimate - g).max() < 1.5


def test_a_vector_uplink_can_be_packed() -> None:
    model, chosen = tiny("llama"), quickly(method("fedzo", uplink_bits=8, q=2), mu=0.3)
    state, added = one_round(chosen, model, start_of(chosen, model), [0, 1])
    assert len(added[0].upload.to_bytes()) < 3 * model.layout.size
    assert not torch.equal(state.w, start_of(chosen, model).w)
