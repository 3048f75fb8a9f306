"""What every estimator promises, checked for each entry of ``ESTIMATORS``.

The oracle is autograd on the peft model's own forward pass. A new estimator is tested by being
listed, with options in ``support.registries``; here it meets every surrogate that judges.
"""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.local.estimators import Estimator
from hofl.local.site import Site
from hofl.local.streams import Stream
from hofl.local.surrogates import Feedback
from hofl.models.adapters import FullBlocks
from hofl.models.split import SplitModel
from hofl.rules import ESTIMATORS, SURROGATES, Part
from support.models import BLOCKS, batch, tiny
from support.registries import (
    ESTIMATOR_EXAMPLES,
    SURROGATE_EXAMPLES,
    check_examples,
    owns_parameters,
    parts_of,
    shown,
)
from support.steps import autograd_gradient, feedback_of, site_at, whole_direction

Q, STEP, MU = 3, 2, 1e-3
JUDGES = [
    part
    for part in parts_of(SURROGATE_EXAMPLES)
    if SURROGATES[part.name].judges and not owns_parameters(part)
]

each = pytest.mark.parametrize("part", parts_of(ESTIMATOR_EXAMPLES), ids=shown)
each_judge = pytest.mark.parametrize("judge", JUDGES, ids=shown)


def made(part: Part, mu: float) -> Estimator:
    return part.made_by(ESTIMATORS[part.name].make, mu)


def site_of(model: SplitModel, boundary: int) -> Site:
    return site_at(model, boundary, DirectionKey(5, 2, 9), STEP)


def scalars(part: Part, judge: Part, site: Site, data: Batch, mu: float, q: int = Q) -> Tensor:
    """The estimate of a step, [q]."""
    estimator = made(part, mu)
    probe = estimator.probe(site, site.model.inputs(data.texts), q)
    return estimator.scalars(probe, feedback_of(judge, site, data, probe.z))


def derivatives(site: Site, data: Batch) -> Tensor:
    """<gradient, u_j> in the bottom by autograd, [q] float64."""
    cut = site.model.layout.cut(site.boundary)
    gradient = autograd_gradient(site.model, data)[:cut].double()
    drawn = [whole_direction(site.directions, site.step, j)[:cut].double() for j in range(Q)]
    return torch.stack(drawn) @ gradient


def test_every_estimator_has_examples_and_a_judge() -> None:
    makers = {name: traits.make for name, traits in ESTIMATORS.items()}
    check_examples(ESTIMATOR_EXAMPLES, makers, inputs=1)
    assert JUDGES


@each
@each_judge
@pytest.mark.parametrize("boundary", [1, 3, BLOCKS])
def test_scalars_converge_to_autograds_directional_derivatives(
    part: Part, judge: Part, boundary: int
) -> None:
    model, data = tiny("llama"), batch(1)
    site = site_of(model, boundary)
    exact = derivatives(site, data)
    errors = []
    for mu in (2e-2, MU):
        estimate = scalars(part, judge, site, data, mu)
        assert (estimate.dtype, tuple(estimate.shape)) == (torch.float32, (Q,))
        assert estimate.device.type == "cpu"
        errors.append(((estimate.double() - exact).norm() / exact.norm()).item())
    coarse, fine = errors
    assert fine < 0.05
    assert fine < coarse / 4 or coarse < 1e-3, "it must converge, or be there"


@each
@each_judge
def test_the_check_at_twice_the_radius_is_close_and_an_exact_estimate_needs_none(
    part: Part, judge: Part
) -> None:
    model, data = tiny("llama"), batch(2)
    site, estimator = site_of(model, 2), made(part, MU)
    probe = estimator.probe(site, site.model.inputs(data.texts), Q)
    feedback = feedback_of(judge, site, data, probe.z)
    again = estimator.recheck(site, site.model.inputs(data.texts), feedback)
    exact = derivatives(site, data)
    found = estimator.scalars(probe, feedback).double()
    if again is None:
        torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-6)
    else:
        assert abs(again - exact[0].item()) < 0.1 * exact.norm().item()


@each
@each_judge
def test_the_check_is_the_estimate_at_twice_the_radius(part: Part, judge: Part) -> None:
    """At radii so large that no rounding can make them equal."""
    model, data, coarse = tiny("llama"), batch(2), 0.2
    site, inputs = site_of(model, 2), model.inputs(data.texts)

    def first_scalar(radius: float) -> float:
        estimator = made(part, radius)
        probe = estimator.probe(site, inputs, Q)
        return estimator.scalars(probe, feedback_of(judge, site, data, probe.z))[0].item()

    estimator = made(part, coarse)
    probe = estimator.probe(site, inputs, Q)
    again = estimator.recheck(site, inputs, feedback_of(judge, site, data, probe.z))
    if again is not None:
        assert again == pytest.approx(first_scalar(2 * coarse), rel=1e-4)
        assert again != pytest.approx(first_scalar(coarse), rel=1e-2)


@each
@each_judge
def test_a_scalar_does_not_depend_on_how_many_directions_there_are(part: Part, judge: Part) -> None:
    """Up to rounding: streams that run together share their products."""
    model, data = tiny("qwen2"), batch(3)
    site = site_of(model, 2)
    several = scalars(part, judge, site, data, MU)
    alone = scalars(part, judge, site, data, MU, q=1)
    torch.testing.assert_close(alone, several[:1], rtol=0.02, atol=2e-3)


@each
@pytest.mark.parametrize("adapter", [None, FullBlocks()], ids=["lora", "full"])
def test_probing_leaves_everything_untouched_and_runs_the_anchor(
    part: Part, adapter: FullBlocks | None
) -> None:
    model, data = tiny("opt", adapter), batch(4)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    w, forwards = model.w.clone(), [vars(module).get("forward") for module in model.base.modules()]
    site, estimator = site_of(model, 3), made(part, MU)
    probe = estimator.probe(site, site.model.inputs(data.texts), Q)
    estimator.scalars(probe, feedback_of(JUDGES[0], site, data, probe.z))
    estimator.recheck(
        site, site.model.inputs(data.texts), feedback_of(JUDGES[0], site, data, probe.z)
    )
    assert torch.equal(model.w, w)
    after = model.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert [vars(module).get("forward") for module in model.base.modules()] == forwards
    assert not probe.z.requires_grad
    torch.testing.assert_close(probe.z, run_plainly(model, data, 3), rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Recording(Feedback):
    """Notes what it is asked to judge, and passes it on."""

    inner: Feedback
    changes: list[tuple[Stream, Tensor]] = field(default_factory=list)
    slopes: list[tuple[Stream, Tensor]] = field(default_factory=list)

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        self.changes.append((stream, moved))
        return self.inner.change(moved, stream)

    def slope(self, tangent: Tensor, stream: Stream) -> Tensor:
        self.slopes.append((stream, tangent))
        return self.inner.slope(tangent, stream)


@each
@each_judge
def test_the_surrogate_is_given_the_stream_it_judges(part: Part, judge: Part) -> None:
    """Oracle: parameters moved by hand to w + scale * u_j, blocks run plainly."""
    model, data = tiny("llama"), batch(5)
    site, estimator, w = site_of(model, 2), made(part, 0.05), model.w.clone()
    probe = estimator.probe(site, site.model.inputs(data.texts), Q)
    inner = feedback_of(judge, site, data, probe.z)
    noted = Recording(inner.loss, inner.top_gradient, inner.delta, inner)
    estimator.scalars(probe, noted)
    estimator.recheck(site, site.model.inputs(data.texts), noted)
    assert {stream.j for stream, _ in noted.changes + noted.slopes} == set(range(Q))
    at_anchor = run_plainly(model, data, 2)
    for stream, z in noted.changes:
        moved = run_moved(site, data, stream.j, stream.scale) - at_anchor
        assert (z - at_anchor - moved).norm() < 1e-3 * moved.norm()
    for stream, tangent in noted.slopes:
        moved = run_moved(site, data, stream.j, 1e-3 * stream.scale) - at_anchor
        assert (tangent - moved / 1e-3).norm() < 0.05 * tangent.norm()
    assert torch.equal(model.w, w)


@torch.no_grad()
def run_plainly(model: SplitModel, data: Batch, boundary: int) -> Tensor:
    """The boundary activation [B, T, D], block by block."""
    inputs = model.inputs(data.texts)
    return model.forward(inputs.hidden, inputs, 0, boundary)


def run_moved(site: Site, data: Batch, j: int, scale: float) -> Tensor:
    """The same with the parameters at w + scale * u_j."""
    w = site.model.w.clone()
    site.model.load(w + scale * whole_direction(site.directions, site.step, j))
    z = run_plainly(site.model, data, site.boundary)
    site.model.load(w)
    return z
