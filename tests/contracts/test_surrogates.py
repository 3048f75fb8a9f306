"""What every surrogate promises by its traits, checked for each entry of ``SURROGATES``.

The oracle is autograd on the peft model's own forward pass, with a hook at the boundary. A new
surrogate is tested by being listed, with options in ``support.registries``.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.local.site import Execution, Site
from hofl.local.streams import Stream
from hofl.models.families import family_of
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES, Part
from support.models import BLOCKS, batch, pack
from support.registries import (
    SURROGATE_EXAMPLES,
    check_examples,
    owns_parameters,
    parts_of,
    shown,
)
from support.steps import feedback_of, loss_of, site_at, tiny_for

STREAM = Stream(j=1, scale=0.5)

each = pytest.mark.parametrize("part", parts_of(SURROGATE_EXAMPLES), ids=shown)
at_boundaries = pytest.mark.parametrize("boundary", [1, 2, BLOCKS])


class Truth(NamedTuple):
    """Loss, activation z and gradient delta at the boundary [1, N, D], gradient of the top."""

    loss: float
    z: Tensor
    delta: Tensor
    top: Tensor


def truth(model: SplitModel, data: Batch, boundary: int) -> Truth:
    """By autograd; the model's own forward pass knows nothing of a boundary."""
    caught: list[Tensor] = []
    hooked = [*model.blocks, family_of(model.base).after_blocks(model.base)[0]][boundary]
    handle = hooked.register_forward_pre_hook(lambda _module, args: caught.append(args[0]))
    loss = loss_of(model, data)
    handle.remove()
    trained = [p for p in model.module.parameters() if p.requires_grad]
    delta, *grads = torch.autograd.grad(loss, [caught[0], *trained])
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    z, delta = pack(caught[0].detach(), data), pack(delta, data)
    return Truth(loss.item(), z, delta, flat[model.layout.cut(boundary) - model.layout.cut(0) :])


def site_of(model: SplitModel, boundary: int, **more: Execution) -> Site:
    return site_at(model, boundary, DirectionKey(5, 2, 9), 1, **more)


def test_every_surrogate_has_examples() -> None:
    makers = {name: traits.make for name, traits in SURROGATES.items()}
    check_examples(SURROGATE_EXAMPLES, makers, inputs=0)


@each
@at_boundaries
@pytest.mark.parametrize("family", ["llama", "opt-350m"])
@pytest.mark.parametrize("segment", [0, 1])
def test_loss_top_gradient_and_delta_are_autograds(
    part: Part, boundary: int, family: str, segment: int
) -> None:
    model, data = tiny_for(part, family), batch(0)
    exact = truth(model, data, boundary)
    site = site_of(model, boundary, execution=Execution(checkpoint=segment))
    found = feedback_of(part, site, data, exact.z)
    assert found.loss == pytest.approx(exact.loss, rel=1e-6)
    torch.testing.assert_close(found.top_gradient, exact.top, rtol=1e-4, atol=1e-6)
    assert (found.delta is not None) == SURROGATES[part.name].gives_delta
    if found.delta is not None:
        torch.testing.assert_close(found.delta, exact.delta, rtol=1e-4, atol=1e-6)


@each
@at_boundaries
def test_a_surrogate_that_judges_follows_the_loss_to_first_order(part: Part, boundary: int) -> None:
    """Along the gradient, against it, and along something random, by change and by slope.

    One with parameters of its own has another loss (``tests/local/test_auxiliary_head.py``).
    """
    if owns_parameters(part):
        return
    model, data = tiny_for(part, "llama"), batch(1)
    exact = truth(model, data, boundary)
    found = feedback_of(part, site_of(model, boundary), data, exact.z)
    if not SURROGATES[part.name].judges:
        for judge in (found.change, found.slope):
            with pytest.raises(AssertionError):
                judge(exact.z, STREAM)
        return
    assert found.change(exact.z, STREAM).item() == pytest.approx(0, abs=1e-6)
    steepest = exact.delta / exact.delta.norm()
    rng = torch.Generator().manual_seed(boundary)
    anyhow = torch.randn(exact.z.shape, generator=rng)
    for tangent in (steepest, -2 * steepest, steepest + anyhow / anyhow.norm()):
        derivative = (exact.delta.double() * tangent.double()).sum().item()
        slope = found.slope(tangent, STREAM).item()
        assert slope == pytest.approx(derivative, rel=1e-3)
        radius = 1e-2
        change = found.change(exact.z + radius * tangent, STREAM).item()
        assert change / radius == pytest.approx(derivative, rel=0.05)


@each
@at_boundaries
def test_judging_leaves_model_and_activation_as_they_are(part: Part, boundary: int) -> None:
    """And nothing it returns holds a graph: a step's memory is freed with its tensors."""
    model, data = tiny_for(part, "llama"), batch(2)
    z = truth(model, data, boundary).z
    w, anchor = model.w.clone(), z.clone()
    found = feedback_of(part, site_of(model, boundary), data, z)
    given = [found.top_gradient, *([] if found.delta is None else [found.delta])]
    if SURROGATES[part.name].judges:
        given += [found.change(z + 0.1, STREAM), found.slope(torch.ones_like(z), STREAM)]
    assert not any(tensor.requires_grad for tensor in given)
    assert torch.equal(model.w, w)
    assert torch.equal(z, anchor)
    assert all(p.grad is None for p in model.module.parameters())
