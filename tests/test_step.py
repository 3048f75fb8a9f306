"""The hybrid-order step against autograd: delta, scalars, estimators, and the joint pass."""

import math
from itertools import pairwise

import pytest
import torch

from hofl.batch import Batch
from hofl.directions import DirectionKey, combine, direction
from hofl.local.estimators import ESTIMATORS
from hofl.local.site import Site
from hofl.local.streams import ANCHOR, Stream, joint_pass
from hofl.local.surrogates import end_to_end, linear
from hofl.local.top import Top
from hofl.models.adapters import FullBlocks
from hofl.models.families import family_of
from hofl.models.split import SplitModel
from models import BLOCKS, CONFIGS, batch, tiny

KEY = DirectionKey(seed=5, round=2, stream=9)


def whole_direction(model: SplitModel, step: int, j: int) -> torch.Tensor:
    """u_j over all coordinates, [d]."""
    pieces = [direction(KEY, step, j, c.index, c.size) for c in model.layout.coordinates]
    return torch.cat([torch.from_numpy(piece) for piece in pieces])


def autograd_gradient(model: SplitModel, data: Batch) -> torch.Tensor:
    """Gradient of the loss by the model's own forward pass, [d]."""
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    logits = model.module(input_ids=data.input_ids).logits[data.rows, data.columns]
    loss = torch.nn.functional.cross_entropy(logits[:, data.goal.candidates], data.goal.targets)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


def probe_scalars(
    model: SplitModel, data: Batch, boundary: int, estimator: str, mu: float, q: int = 4
) -> torch.Tensor:
    probe = ESTIMATORS[estimator](mu).probe(Site(model, data.input_ids, boundary, KEY, 0), q)
    inputs = model.inputs(data.input_ids)
    return probe.scalars(linear(Top(model, inputs, data, boundary), probe.z))


@pytest.mark.parametrize("family", CONFIGS)
def test_boundary_gradient_and_top_gradient_equal_autograds(family: str) -> None:
    model, data = tiny(family), batch(0)
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    for boundary in range(BLOCKS + 1):
        caught: list[torch.Tensor] = []
        hooked = [*model.blocks, family_of(model.config).after_blocks(model.base)[0]][boundary]

        def catch(_module: object, args: tuple[torch.Tensor, ...], kept=caught) -> None:
            kept.append(args[0])

        handle = hooked.register_forward_pre_hook(catch)
        logits = model.module(input_ids=data.input_ids).logits[data.rows, data.columns]
        handle.remove()
        loss = torch.nn.functional.cross_entropy(logits[:, data.goal.candidates], data.goal.targets)
        (z,) = caught
        wanted = [z, *parameters] if z.requires_grad else parameters
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        flat = torch.cat([g.reshape(-1) for g in grads[-len(parameters) :]])
        feedback = linear(Top(model, model.inputs(data.input_ids), data, boundary), z)
        torch.testing.assert_close(feedback.loss, loss.item(), rtol=1e-6, atol=1e-6)
        assert feedback.delta is not None
        if z.requires_grad:
            torch.testing.assert_close(feedback.delta, grads[0], rtol=1e-4, atol=1e-7)
        top = flat[model.layout.cut(boundary) :]
        torch.testing.assert_close(feedback.top_gradient, top, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("boundary", range(1, BLOCKS + 1))
def test_forward_mode_equals_autograds_directional_derivative(family: str, boundary: int) -> None:
    model, data = tiny(family), batch(1)
    gradient = autograd_gradient(model, data)
    cut = model.layout.cut(boundary)
    scalars = probe_scalars(model, data, boundary, "forward-mode", 0.0)
    for j, s in enumerate(scalars):
        exact = gradient[:cut].double() @ whole_direction(model, 0, j)[:cut].double()
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
    inputs = model.inputs(data.input_ids)
    probe = ESTIMATORS[estimator](1e-3).probe(Site(model, data.input_ids, 2, KEY, 0), 4)
    straight = probe.scalars(linear(Top(model, inputs, data, 2), probe.z))
    through = probe.scalars(end_to_end(Top(model, inputs, data, 2), probe.z))
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
    limit = streams_at_once * data.input_ids.numel()
    monkeypatch.setattr("hofl.local.streams.JOINT_TOKENS", limit)
    start = model.w.clone()
    streams = [ANCHOR, Stream(0, 0.1), Stream(1, 0.1), Stream(0, -0.1)]
    for boundary in (1, 3):
        joint = joint_pass(Site(model, data.input_ids, boundary, KEY, 7), streams)
        for stream, z in zip(streams, joint, strict=True):
            model.load(start + stream.scale * whole_direction(model, 7, stream.j))
            with torch.no_grad():
                inputs = model.inputs(data.input_ids)
                alone = model.forward(inputs.hidden, inputs, 0, boundary)
            torch.testing.assert_close(z, alone, rtol=1e-4, atol=1e-5)
            model.load(start)
        assert (joint[1] - joint[0]).abs().max() > 1e-4


def test_probing_leaves_the_parameters_untouched() -> None:
    model, data = tiny("opt"), batch(5)
    before = model.w.clone()
    for estimator in ESTIMATORS:
        probe_scalars(model, data, 3, estimator, 1e-3)
    assert torch.equal(model.w, before)


def test_mean_of_many_estimates_converges_to_the_gradient_at_the_predicted_rate() -> None:
    """E||g_hat - g||^2 = ||g||^2 (d + 1) / q for exact scalars and Gaussian directions."""
    model, data = tiny("llama"), batch(6)
    boundary = 1
    cut = model.layout.cut(boundary)
    exact = autograd_gradient(model, data)[:cut]
    errors = {}
    for q in (8, 128):
        squared = []
        for step in range(24):
            estimator = ESTIMATORS["forward-mode"](0.0)
            probe = estimator.probe(Site(model, data.input_ids, boundary, KEY, step), q)
            inputs = model.inputs(data.input_ids)
            s = probe.scalars(linear(Top(model, inputs, data, boundary), probe.z))
            out = torch.empty(cut)
            combine(s.numpy(), KEY, step, model.layout, boundary, out=out.numpy())
            squared.append((out - exact).square().sum().item())
        errors[q] = sum(squared) / len(squared) / exact.square().sum().item()
        # relative spread of the mean over 24 repeats of q directions each
        assert errors[q] == pytest.approx((cut + 1) / q, rel=4 * math.sqrt(2 / (24 * min(q, 20))))
    assert errors[8] / errors[128] == pytest.approx(16, rel=0.6)
