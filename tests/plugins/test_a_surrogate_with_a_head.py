"""A surrogate that owns a trainable head, from outside the package (HERON-SFL's idea).

The head is a part of the bottom: perturbed in the same streams, moved by the same optimizer,
replayed by the server, and left behind when the adapter is saved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import hofl
from hofl.algorithm import client_update, reconstruct
from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey
from hofl.core.optim import AdamW
from hofl.experiment.build import build_simulation
from hofl.experiment.checkpoint import load_state
from hofl.experiment.runs import RunDirectory
from hofl.local.site import Site
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.local.streams import ANCHOR, Stream, stream_values
from hofl.local.surrogates import Feedback, Surrogate
from hofl.local.top import Top
from hofl.messages import RoundPlan, Upload
from hofl.models.adapters import Lora, SurrogateParameters
from hofl.models.loading import build_split
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES, LocalRule, Part, SurrogateTraits
from support.models import BLOCKS, CONFIGS, batch
from support.runs import adapter_bytes, quick

HEAD = "head.weight"
RULE = LocalRule(
    optimizer=AdamW(lr=0.01),
    local_steps=2,
    surrogate=Part.of({"name": "auxiliary", "classes": 4}),
    estimator=Part("central"),
    q=3,
)


class Auxiliary(Surrogate):
    """L(v, theta) = loss of a linear classifier theta [C, D] on z at the prediction slots."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def parameters(self, config: Any) -> SurrogateParameters:
        shape = (self._classes, config.hidden_size)
        rng = torch.Generator().manual_seed(0)
        start = 0.1 * torch.randn(self._classes * config.hidden_size, generator=rng)
        return SurrogateParameters((HEAD,), (shape,), start)

    def __call__(self, site: Site, batch: Batch, top: Top, z: Tensor) -> Feedback:
        loss, top_gradient, _ = top.gradients(z, to_boundary=False)
        at_anchor = head_loss(site, batch, z, ANCHOR)
        return _Judged(loss.item(), top_gradient, None, site, batch, at_anchor)


@dataclass(frozen=True)
class _Judged(Feedback):
    site: Site
    batch: Batch
    at_anchor: Tensor

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        return head_loss(self.site, self.batch, moved, stream) - self.at_anchor


@torch.no_grad()
def head_loss(site: Site, batch: Batch, z: Tensor, stream: Stream) -> Tensor:
    head = stream_values(site, site.model.layout.surrogate, [stream])[HEAD][0]
    return cross_entropy((z[0, batch.slots] @ head.T).double(), batch.goal.targets)


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    SURROGATES["auxiliary"] = SurrogateTraits(make=Auxiliary, judges=True)
    yield
    del SURROGATES["auxiliary"]


@pytest.fixture
def model() -> SplitModel:
    surrogate = Auxiliary(4).parameters(CONFIGS["llama"])
    return build_split(CONFIGS["llama"], None, adapter=Lora(rank=2), seed=1, surrogate=surrogate)


def plan_of(model: SplitModel, boundary: int) -> RoundPlan:
    values = {"run": "h", "round": 1, "client": 2, "layout": model.layout.digest}
    values |= {"key": DirectionKey(3, 1, 2), "seed": 3}
    return RoundPlan(**values, boundary=boundary, rule=RULE, w=model.w.clone(), verify=True)


@pytest.mark.parametrize("boundary", [1, 3, BLOCKS])
def test_the_server_replays_bottom_and_head(model: SplitModel, boundary: int) -> None:
    plan = plan_of(model, boundary)
    start = plan.w.clone()
    batches = [[batch(0)], [batch(1)]]
    upload = client_update(model, plan, batches, LocalParts.of(RULE, boundary))
    upload = Upload.from_bytes(upload.to_bytes())
    delta = reconstruct(RoundPlan.from_bytes(plan.to_bytes()), upload, model.layout)
    assert torch.equal(delta, model.w - start)
    head = model.layout.cut(0)
    assert head == 4 * 32
    assert delta[:head].abs().min() > 0, "the head is trained"
    assert len(upload.difference) == model.layout.size - model.layout.cut(boundary)


def test_scalars_are_derivatives_along_bottom_and_head(model: SplitModel) -> None:
    """Oracle: autograd of the head's loss in the bottom's parameters and the head."""
    data, boundary = batch(4), 2
    plan = replace(plan_of(model, boundary), rule=replace(RULE, mu=2e-3))
    site = Site(model, boundary, plan.directions(model.layout), 1)
    model.load(model.w + 0.05)  # B = 0 would make most derivatives vanish
    found = hybrid_gradients(site, [data], LocalParts.of(plan.rule, boundary)).scalars
    head = model.w[: model.layout.cut(0)].view(4, -1).clone().requires_grad_(True)
    wanted = [head, *model.parameters_in(range(boundary))]
    inputs = model.inputs(data.texts)
    z = model.forward(inputs.hidden, inputs, 0, boundary)
    loss = cross_entropy(z[0, data.slots] @ head.T, data.goal.targets)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, wanted)]).double()
    for j, scalar in enumerate(found):
        pieces = [site.directions.direction(1, j, c) for c in model.layout.bottom(boundary)]
        u = torch.cat([torch.from_numpy(piece) for piece in pieces]).double()
        assert scalar.item() == pytest.approx((gradient @ u).item(), rel=0.02, abs=2e-3)


def test_a_whole_run_trains_the_head_and_leaves_it_behind(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = quick(tiny_folder, method={"surrogate": {"name": "auxiliary", "classes": 4}})
    run = hofl.run(config, tmp_path / "run")
    experiment = build_simulation(config)
    state = load_state(RunDirectory(run.path), experiment.layout.digest)
    head = experiment.layout.cut(0)
    assert state is not None
    assert head == 4 * 32
    assert not torch.equal(state.w[:head], experiment.start.w[:head])
    plain = hofl.run(quick(tiny_folder), tmp_path / "plain")
    saved = load_file(run.path / "adapter" / "adapter_model.safetensors")
    assert saved.keys() == load_file(plain.path / "adapter" / "adapter_model.safetensors").keys()
    assert adapter_bytes(run.path) != adapter_bytes(plain.path)


def test_a_missing_option_is_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(hofl.HoflError, match="'auxiliary' needs the option 'classes'"):
        hofl.run(quick(tiny_folder, method={"surrogate": "auxiliary"}), tmp_path / "run")
