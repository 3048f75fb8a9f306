"""What every bottom rule promises by its traits, checked for each entry of ``BOTTOM_RULES``.

A new rule is tested by being listed, with options in ``support.registries``.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hofl.algorithm import reconstruct, replay
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError, UploadRefused
from hofl.core.optim import SGD, AdamW
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts, StepGradients, hybrid_gradients
from hofl.models.split import SplitModel
from hofl.rules import BOTTOM_RULES, SURROGATES, LocalRule, Part
from hofl.server.checks import UploadLimits, check_upload, plan_as_answered
from support.models import BLOCKS, batch, parts, tiny
from support.registries import (
    BOTTOM_EXAMPLES,
    SURROGATE_EXAMPLES,
    check_examples,
    parts_of,
    rules_of,
    shown,
)
from support.steps import autograd_gradient, participate, plan_for, site_at, tiny_for

STEPS, Q = 2, 3
RULES = rules_of(local_steps=STEPS, q=Q)
EXECUTIONS = (PLAIN, Execution(micro_batch=2, checkpoint=3))

each = pytest.mark.parametrize("rule", RULES, ids=shown)


def gradients(
    model: SplitModel, boundary: int, rule: LocalRule, execution: Execution = PLAIN
) -> StepGradients:
    """Both segments' gradients of a local step."""
    site = site_at(model, boundary, DirectionKey(1, 0, 0), 0, execution=execution)
    pieces = parts(batch(0), execution.micro_batch)
    return hybrid_gradients(site, pieces, LocalParts.of(rule, boundary))


def test_every_bottom_rule_has_examples_and_a_surrogate() -> None:
    makers = {name: traits.make for name, traits in BOTTOM_RULES.items()}
    check_examples(BOTTOM_EXAMPLES, makers, inputs=1)
    assert {rule.bottom for rule in RULES} == set(parts_of(BOTTOM_EXAMPLES))


@each
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05), AdamW(lr=0.01)], ids=lambda o: o.name)
@pytest.mark.parametrize("execution", EXECUTIONS, ids=["plain", "lean"])
def test_the_upload_holds_what_the_traits_say_and_the_server_rebuilds_the_client_from_it(
    rule: LocalRule, optimizer: SGD | AdamW, execution: Execution
) -> None:
    traits = rule.traits
    model = tiny("llama")
    layout, start = model.layout, model.w.clone()
    for boundary in (1, 2, BLOCKS):
        model.load(start)
        plan = plan_for(model, boundary, replace(rule, optimizer=optimizer), verify=True)
        upload, final = participate(model, plan, execution)
        cut = layout.cut(boundary)
        assert tuple(upload.scalars.shape) == (STEPS, Q if traits.sends_scalars else 0)
        sent = start.new_zeros(layout.size)
        sent[0 if traits.sends_difference else cut :] = upload.difference  # of exactly this length
        assert torch.equal(sent[cut:], (final - start)[cut:])
        if traits.sends_difference:
            assert torch.equal(sent, final - start)
        if traits.sends_scalars:
            assert torch.equal(replay(plan, upload.scalars, layout), final[:cut])
        check_upload(upload, plan, layout, UploadLimits())
        assert torch.equal(reconstruct(plan, upload, layout), final - start)
        moved = final[:cut] != start[:cut]
        trained = traits.sends_scalars or traits.sends_difference
        assert moved.float().mean() > 0.99 if trained else not moved.any()


@each
@pytest.mark.parametrize("execution", EXECUTIONS, ids=["plain", "lean"])
def test_only_an_exact_rule_has_autograds_gradient(rule: LocalRule, execution: Execution) -> None:
    model = tiny("gemma3")
    exact = autograd_gradient(model, batch(0))
    for boundary in (1, 3, BLOCKS):
        cut = model.layout.cut(boundary)
        ours = gradients(model, boundary, rule, execution).bottom
        ours = torch.zeros(cut) if ours is None else ours
        error = (ours - exact[:cut]).norm() / exact[:cut].norm()
        assert error < 1e-5 if rule.traits.exact else error > 0.5


@each
@pytest.mark.parametrize("execution", EXECUTIONS, ids=["plain", "lean"])
def test_only_a_rule_that_needs_backward_builds_a_graph_below_the_boundary(
    rule: LocalRule, execution: Execution
) -> None:
    model = tiny("llama")
    graphs: set[int] = set()
    for index, block in enumerate(model.blocks):

        def look(_module: nn.Module, _args: Any, output: Any, index: int = index) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if hidden.requires_grad:
                graphs.add(index)

        block.register_forward_hook(look)
    for boundary in (1, 3, BLOCKS):
        graphs.clear()
        gradients(model, boundary, rule, execution)
        assert graphs >= set(range(boundary, BLOCKS)), "the top is differentiated"
        below = graphs & set(range(boundary))
        assert below == (set(range(boundary)) if rule.traits.needs_backward else set())


@pytest.mark.parametrize("bottom", parts_of(BOTTOM_EXAMPLES), ids=shown)
@pytest.mark.parametrize("surrogate", parts_of(SURROGATE_EXAMPLES), ids=shown)
def test_a_surrogate_is_refused_where_it_gives_too_little_and_only_there(
    bottom: Part, surrogate: Part
) -> None:
    """A refused pair, run in spite of the check, must fail: otherwise a trait asks for too much."""
    traits, given = BOTTOM_RULES[bottom.name], SURROGATES[surrogate.name]
    lacking = (traits.needs_delta and not given.gives_delta) or (
        (traits.sends_scalars or traits.probes) and not given.judges
    )
    rule = replace(RULES[0], bottom=bottom, surrogate=surrogate)
    site = site_at(tiny_for(surrogate, "llama"), 2, DirectionKey(1, 0, 0), 0)
    if not lacking:
        hybrid_gradients(site, [batch(0)], LocalParts.of(rule, 2))
        return
    with pytest.raises(HoflError, match=f"a {bottom.name} bottom needs .*: set surrogate to "):
        LocalParts.of(rule, 2)
    forced = LocalParts(bottom.made_by(traits.make, rule), surrogate.made_by(given.make))
    with pytest.raises(AssertionError):
        hybrid_gradients(site, [batch(0)], forced)


@each
def test_an_answer_at_a_raised_boundary_counts_where_the_rule_may_raise_it(rule: LocalRule) -> None:
    """As a device short of memory answers: it runs the plan at another boundary."""
    model = tiny("llama")
    layout, start = model.layout, model.w.clone()
    for boundary, raised in ((0, 1), (1, 3), (0, BLOCKS), (2, BLOCKS)):
        model.load(start)
        plan = plan_for(model, boundary, rule, verify=True)
        upload, final = participate(model, replace(plan, boundary=raised))
        answered = plan_as_answered(plan, upload, layout)
        if not rule.traits.may_raise_boundary:
            assert answered == plan
            with pytest.raises(UploadRefused, match=f"boundary is {raised}, expected {boundary}"):
                check_upload(upload, answered, layout, UploadLimits())
            continue
        check_upload(upload, answered, layout, UploadLimits())
        assert torch.equal(reconstruct(answered, upload, layout), final - start)
        assert (final != start)[: layout.cut(raised)].float().mean() > 0.99


@each
def test_no_other_boundary_is_taken_for_a_raised_one(rule: LocalRule) -> None:
    model = tiny("llama")
    plan = plan_for(model, 2, rule)
    upload, _ = participate(model, plan)
    for other in (-1, 0, 1, 2, BLOCKS + 1, 3.0, True, "4", None):
        assert plan_as_answered(plan, replace(upload, boundary=other), model.layout) == plan
