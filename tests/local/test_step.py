"""The hybrid-order step against autograd: delta, scalars, estimators, and the joint pass."""

import math
from itertools import pairwise

import pytest
import torch

from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey, Gaussian
from hofl.local.streams import ANCHOR, Stream, joint_pass
from hofl.local.surrogates import EndToEnd, Linear
from hofl.local.top import LocalTop
from hofl.models.adapters import FullBlocks
from hofl.models.families import family_of
from hofl.models.split import SplitModel
from support.models import BLOCKS, CONFIGS, batch, pack, tiny
from support.steps import autograd_gradient, loss_of, made, site_at, whole_direction

KEY = DirectionKey(seed=5, round=2, stream=9)


def probe_scalars(
    model: SplitModel, data: Batch, boundary: int, estimator: str, mu: float, q: int = 4
) -> torch.Tensor:
    used, site = made(estimator, mu), site_at(model, boundary, KEY, 0)
    inputs = model.inputs(data.texts)
    probe, top = used.probe(site, inputs, q), LocalTop.open(site, data, inputs)
    return used.scalars(probe, Linear()(site, data, top, probe.z))


@pytest.mark.parametrize("family", CONFIGS)
def test_boundary_gradient_and_top_gradient_equal_autograds(family: str) -> None:
    model, data = tiny(family), batch(0)
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    for boundary in range(BLOCKS + 1):
        caught: list[torch.Tensor] = []
        hooked = [*model.blocks, family_of(model.base).after_blocks(model.base)[0]][boundary]

        def catch(_module: object, args: tuple[torch.Tensor, ...], kept=caught) -> None:
            kept.append(args[0])

        handle = hooked.register_forward_pre_hook(catch)
        loss = loss_of(model, data)
        handle.remove()
        (z,) = caught
        wanted = [z, *parameters] if z.requires_grad else parameters
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        flat = torch.cat([g.reshape(-1) for g in grads[-len(parameters) :]])
        site = site_at(model, boundary, KEY, 0)
        top = LocalTop.open(site, data, model.inputs(data.texts))
        feedback = Linear()(site, data, top, pack(z, data))
        torch.testing.assert_close(feedback.loss, loss.item(), rtol=1e-6, atol=1e-6)
        assert feedback.delta is not None
        if z.requires_grad:
            torch.testing.assert_close(feedback.delta, pack(grads[0], data), rtol=1e-4, atol=1e-7)
        expected = flat[model.layout.cut(boundary) :]
        torch.testing.assert_close(feedback.top_gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("boundary", range(1, BLOCKS + 1))
def test_forward_mode_equals_autograds_directional_derivative(family: str, boundary: int) -> None:
    model, data = tiny(family), batch(1)
    gradient = autograd_gradient(model, data)
    cut = model.layout.cut(boundary)
    scalars = probe_scalars(model, data, boundary, "forward-mode", 0.0)
    for j, s in enumerate(scalars):
        u = whole_direction(Gaussian(KEY, model.layout), 0, j)
        exact = gradient[:cut].double() @ u[:cut].double()
        assert s.item() == pytest.approx(exact.item(), rel=2e-4, abs=1e-6)


@pytest.mark.parametrize(("estimator", "order"), [("forward", 1), ("central", 2)])
def test_differences_converge_to_the_derivative_at_their_order(estimator: str, order: int) -> None:
    """In FP32 the truncation error falls like mu ** order until rounding takes over."""
    model, data = tiny("llama"), batch(2)
    exact = probe_scalars(model, data, 3, "forward-mode", 0.0)
    errors = [
        (probe_scalars(model, data, 3, estimator, mu) - exact).abs().max().item()
        for mu in (0.0125, 0.00625, 0.003125)
    ]
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.2)
    assert errors[-1] < 0.1 * exact.abs().max()


@pytest.mark.parametrize("estimator", ["forward", "central", "forward-mode"])
def test_end_to_end_and_linear_surrogates_agree_to_first_order(estimator: str) -> None:
    model, data = tiny("qwen2"), batch(3)
    used, site = made(estimator, 1e-3), site_at(model, 2, KEY, 0)
    inputs = model.inputs(data.texts)
    probe, top = used.probe(site, inputs, 4), LocalTop.open(site, data, inputs)
    straight = used.scalars(probe, Linear()(site, data, top, probe.z))
    through = used.scalars(probe, EndToEnd()(site, data, top, probe.z))
    tolerance = 1e-5 if estimator == "forward-mode" else 0.02
    scale = straight.abs().max()
    assert (straight - through).abs().max() < tolerance * max(1.0, scale.item())


@pytest.mark.parametrize(
    ("adapter", "streams_at_once"), [(None, 4), (None, 3), (None, 1), (FullBlocks(), 4)]
)
@pytest.mark.parametrize("family", CONFIGS)
def test_joint_pass_equals_the_streams_run_one_after_another(
    family: str,
    adapter: FullBlocks | None,
    streams_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Oracle: load the perturbed parameters into the model and run its blocks plainly."""
    model, data = tiny(family, adapter), batch(4)
    limit = streams_at_once * len(data.texts.tokens)
    monkeypatch.setattr("hofl.local.streams.JOINT_TOKENS", limit)
    start = model.w.clone()
    streams = [ANCHOR, Stream(0, 0.1), Stream(1, 0.1), Stream(0, -0.1)]
    for boundary in (1, 3):
        site = site_at(model, boundary, KEY, 7)
        joint = joint_pass(site, model.inputs(data.texts), streams)
        for stream, z in zip(streams, joint, strict=True):
            model.load(start + stream.scale * whole_direction(site.directions, 7, stream.j))
            with torch.no_grad():
                inputs = model.inputs(data.texts)
                alone = model.forward(inputs.hidden, inputs, 0, boundary)
            torch.testing.assert_close(z, alone, rtol=1e-4, atol=1e-5)
            model.load(start)
        assert (joint[1] - joint[0]).abs().max() > 1e-4


def test_mean_of_many_estimates_converges_to_the_gradient_at_the_predicted_rate() -> None:
    """E||g_hat - g||^2 = ||g||^2 (d + 1) / q for exact scalars and Gaussian directions."""
    model, data = tiny("llama"), batch(6)
    boundary = 1
    cut = model.layout.cut(boundary)
    exact = autograd_gradient(model, data)[:cut]
    errors = {}
    for q in (8, 64):
        squared = []
        for step in range(16):
            estimator, site = made("forward-mode", 0.0), site_at(model, boundary, KEY, step)
            probe = estimator.probe(site, site.model.inputs(data.texts), q)
            feedback = Linear()(
                site, data, LocalTop.open(site, data, site.model.inputs(data.texts)), probe.z
            )
            s = estimator.scalars(probe, feedback)
            out = torch.empty(cut)
            Gaussian(KEY, model.layout).combine(s.numpy(), step, boundary, out=out.numpy())
            squared.append((out - exact).square().sum().item())
        errors[q] = sum(squared) / len(squared) / exact.square().sum().item()
        # relative spread of the mean over 16 repeats of q directions each
        assert errors[q] == pytest.approx((cut + 1) / q, rel=4 * math.sqrt(2 / (16 * min(q, 20))))
    assert errors[8] / errors[64] == pytest.approx(8, rel=0.6)
