"""The auxiliary head (HERON-SFL's surrogate) inside HO-FL's own workflow, with replay."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hofl.algorithm import reconstruct
from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError
from hofl.core.optim import SGD, AdamW
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.local.streams import ANCHOR
from hofl.models.split import SplitModel
from hofl.rules import LocalRule, Part
from support.models import BLOCKS, batch, tiny
from support.steps import (
    feedback_of,
    participate,
    plan_for,
    site_at,
    tiny_for,
    whole_direction,
)

HEAD = Part.of({"name": "auxiliary-head", "rank": 2, "alpha": 4.0})
RULE = LocalRule(optimizer=AdamW(lr=0.01), surrogate=HEAD, q=3, mu=1e-3, local_steps=2)


def identity_head(model: SplitModel) -> None:
    """B = 0, as at the start of a run."""
    own = model.layout.surrogate
    model.w[own[1].start : own[1].stop] = 0


def loss_written_out(model: SplitModel, data: Batch, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The head from the base model's own norm and unembedding, alpha / r = 2."""
    hidden = z[0, data.slots]
    hidden = hidden + 2 * hidden @ a.T @ b.T
    scores = model.base.lm_head(model.base.model.norm(hidden))
    return cross_entropy(scores[:, data.goal.candidates], data.goal.targets)


@pytest.mark.parametrize("estimator", ["central", "forward-mode"])
def test_scalars_are_derivatives_of_the_heads_loss_along_bottom_and_head(estimator: str) -> None:
    """Oracle: autograd of the head written out, in the bottom's parameters and in A and B."""
    model, data, boundary = tiny_for(HEAD, "llama"), batch(4), 2
    rule = replace(RULE, estimator=estimator)
    site = site_at(model, boundary, DirectionKey(3, 1, 2), 1)
    found = hybrid_gradients(site, [data], LocalParts.of(rule, boundary)).scalars
    a, b = (
        model.w[c.start : c.stop].view(c.shape).clone().requires_grad_(True)
        for c in model.layout.surrogate
    )
    inputs = model.inputs(data.texts)
    z = model.forward(inputs.hidden, inputs, 0, boundary)
    wanted = [a, b, *model.parameters_in(range(boundary))]
    grads = torch.autograd.grad(loss_written_out(model, data, z, a, b), wanted)
    gradient = torch.cat([g.reshape(-1) for g in grads]).double()
    for j, scalar in enumerate(found):
        u = whole_direction(site.directions, 1, j)[: len(gradient)].double()
        assert scalar.item() == pytest.approx((gradient @ u).item(), rel=0.03, abs=3e-3)


@pytest.mark.parametrize("family", ["llama", "opt", "opt-350m"])
def test_with_the_true_top_for_its_head_it_is_the_end_to_end_surrogate(family: str) -> None:
    """Behind the last block the top is norm and unembedding, and B = 0 adds nothing to them."""
    model, data = tiny_for(HEAD, family), batch(1)
    identity_head(model)
    site = site_at(model, BLOCKS, DirectionKey(3, 1, 2), 1)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        z = model.forward(inputs.hidden, inputs, 0, BLOCKS)
    head, whole = (feedback_of(part, site, data, z) for part in (HEAD, Part("end-to-end")))
    moved = z + 3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    expected = whole.change(moved, ANCHOR).item()
    assert abs(expected) > 1e-4
    assert head.change(moved, ANCHOR).item() == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert head.loss == whole.loss


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_with_copies_of_the_whole_top_it_is_the_end_to_end_surrogate(family: str) -> None:
    """The copies' LoRA set to the top's own, B = 0: head and top are the same function of z."""
    boundary = 2
    copying = Part.of({"name": HEAD.name, "rank": 2, "blocks": BLOCKS - boundary})
    model, data = tiny_for(copying, family), batch(1)
    identity_head(model)
    top = model.w[model.layout.cut(boundary) :]
    own = model.layout.surrogate[2].start
    assert model.layout.cut(0) == own + len(top)
    model.w[own : model.layout.cut(0)] = top
    site = site_at(model, boundary, DirectionKey(3, 1, 2), 1)
    inputs = model.inputs(data.texts)
    with torch.no_grad():
        z = model.forward(inputs.hidden, inputs, 0, boundary)
    head, whole = (feedback_of(part, site, data, z) for part in (copying, Part("end-to-end")))
    moved = z + 3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    expected = whole.change(moved, ANCHOR).item()
    assert abs(expected) > 1e-4
    assert head.change(moved, ANCHOR).item() == pytest.approx(expected, rel=1e-3, abs=1e-6)
    model.w[own : model.layout.cut(0)] *= 1.5
    assert feedback_of(copying, site, data, z).change(moved, ANCHOR).item() != pytest.approx(
        expected, rel=1e-3
    ), "the copies' own matrices count"


def test_replay_includes_the_copies_of_blocks() -> None:
    copying = Part.of({"name": HEAD.name, "rank": 2, "blocks": 1})
    model = tiny_for(copying, "llama")
    start = model.w.clone()
    plan = plan_for(model, 2, replace(RULE, surrogate=copying), verify=True)
    upload, final = participate(model, plan)
    assert torch.equal(reconstruct(plan, upload, model.layout), final - start)
    own = model.layout.cut(0)
    assert (final[:own] != start[:own]).float().mean() > 0.9
    with pytest.raises(HoflError, match="a head of 1 blocks does not fit above boundary 4"):
        participate(model, plan_for(model, BLOCKS, replace(RULE, surrogate=copying)))


@pytest.mark.parametrize("boundary", [1, 3, BLOCKS])
@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01), SGD(lr=0.1)], ids=lambda o: o.name)
def test_the_server_replays_bottom_and_head_bit_for_bit(
    boundary: int, optimizer: AdamW | SGD
) -> None:
    model = tiny_for(HEAD, "llama")
    start = model.w.clone()
    plan = plan_for(model, boundary, replace(RULE, optimizer=optimizer), verify=True)
    upload, final = participate(model, plan)
    assert torch.equal(reconstruct(plan, upload, model.layout), final - start)
    own = model.layout.cut(0)
    assert own == 2 * 2 * 32
    assert (final[:own] != start[:own]).float().mean() > 0.9, "the head is trained"
    assert len(upload.difference) == model.layout.size - model.layout.cut(boundary)


def test_a_model_without_the_heads_parameters_is_refused_in_one_line() -> None:
    site = site_at(tiny("llama"), 2, DirectionKey(3, 1, 2), 1)
    with pytest.raises(HoflError, match="built without the parameters of the auxiliary head"):
        hybrid_gradients(site, [batch(0)], LocalParts.of(RULE, 2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rank": 0}, "rank must be"),
        ({"rank": 2.5}, "rank must be"),
        ({"alpha": 0}, "alpha must"),
        ({"blocks": -1}, "blocks must"),
    ],
)
def test_options_that_make_no_sense_are_one_line(options: dict, reason: str) -> None:
    with pytest.raises(HoflError, match=reason):
        LocalParts.of(replace(RULE, surrogate=Part.of({"name": HEAD.name, **options})), 2)
