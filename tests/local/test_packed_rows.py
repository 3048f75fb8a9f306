"""Texts in one row without padding, against the model's own forward pass on padded batches."""

from dataclasses import replace

import pytest
import torch

from hofl.core.directions import DirectionKey
from hofl.core.optim import SGD
from hofl.local.site import Execution
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.rules import BOTTOM_RULES, LocalRule
from support.models import BLOCKS, CONFIGS, batch_of, parts, tiny
from support.steps import autograd_gradient, site_at, whole_direction

# A single token, neighbours of one length, and texts longer than Gemma's window of 4.
LENGTHS = (10, 7, 7, 1, 3, 10, 5)
Q = 2
RULES = {
    "zeroth-order": LocalRule(optimizer=SGD(lr=1e-3), q=Q, estimator="forward-mode"),
    "zeroth-order-vector": LocalRule(
        optimizer=SGD(lr=1e-3), q=Q, estimator="forward-mode", bottom="zeroth-order-vector"
    ),
    "recompute": LocalRule(optimizer=SGD(lr=1e-3), q=0, bottom="recompute"),
    "frozen": LocalRule(optimizer=SGD(lr=1e-3), q=0, bottom="frozen", surrogate="none"),
}


def test_every_bottom_rule_is_here() -> None:
    assert set(RULES) == set(BOTTOM_RULES)


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("family", CONFIGS)
def test_gradients_are_those_of_padded_batches(family: str, name: str, size: int) -> None:
    model, own, data = tiny(family), tiny(family), batch_of(5, LENGTHS)
    own.base.set_attn_implementation("eager")  # nothing of hofl's attention is in the oracle
    exact = autograd_gradient(own, data)
    scale = exact.abs().max().item()
    for boundary in (0, 1, BLOCKS):
        site = replace(
            site_at(model, boundary, DirectionKey(5, 2, 9), 1), execution=Execution(checkpoint=2)
        )
        found = hybrid_gradients(site, parts(data, size), LocalParts.of(RULES[name], boundary))
        cut = model.layout.cut(boundary)
        torch.testing.assert_close(found.top, exact[cut:], rtol=1e-4, atol=1e-6 * scale)
        if boundary and BOTTOM_RULES[name].exact:
            assert found.bottom is not None
            torch.testing.assert_close(found.bottom, exact[:cut], rtol=1e-4, atol=1e-6 * scale)
        for j, scalar in enumerate(found.scalars):
            u = whole_direction(site.directions, 1, j)[:cut]
            derivative = (exact[:cut].double() * u.double()).sum().item()
            assert scalar.item() == pytest.approx(derivative, rel=1e-3, abs=1e-5 * scale)


def test_a_window_reaches_as_far_as_the_models_own() -> None:
    """Oracle: change a token and see which outputs move, packed among other texts."""
    model = tiny("gemma3")
    before = batch_of(1, (6, 9, 4)).texts
    tokens = before.tokens.clone()
    tokens[6] = (tokens[6] + 1) % 90 + 3  # the first token of the second text
    reached = []
    for block in (0, 1):  # one slides over 4 tokens, the other looks at everything
        with torch.no_grad():
            outputs = []
            for texts in (before, replace(before, tokens=tokens)):
                inputs = model.inputs(texts)
                outputs.append(model.block(block, inputs.hidden, inputs)[0])
        moved = (outputs[0] - outputs[1]).abs().amax(1) > 0
        reached.append(moved.nonzero().flatten().tolist())
    assert reached == [[6, 7, 8, 9], [*range(6, 15)]]
