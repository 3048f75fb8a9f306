"""Local steps and rounds by hand: parts of a rule, participations, contributions, and autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hofl.algorithm import client_update, server_round
from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey, Directions, Gaussian
from hofl.core.layout import Layout
from hofl.local.estimators import Estimator
from hofl.local.site import PLAIN, Execution, Site
from hofl.local.step import LocalParts
from hofl.local.surrogates import Feedback
from hofl.local.top import LocalTop
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.models.split import SplitModel
from hofl.rules import ESTIMATORS, SURROGATES, LocalRule, Part
from hofl.server.aggregate import aggregation_of
from hofl.server.state import Contribution, NothingKept, ServerState, keeper_of
from support.models import CONFIGS, batch, parts, slot_logits, tiny


def made(estimator: str, mu: float) -> Estimator:
    """An estimator by name."""
    return Part(estimator).made_by(ESTIMATORS[estimator].make, mu)


def site_at(model: SplitModel, boundary: int, key: DirectionKey, step: int, **more: Any) -> Site:
    """A local step with Gaussian directions."""
    return Site(model, boundary, Gaussian(key, model.layout), step, **more)


def tiny_for(surrogate: Part, family: str) -> SplitModel:
    """A tiny model with the parameters that a surrogate trains beside the model's, if any."""
    made = surrogate.made_by(SURROGATES[surrogate.name].make)
    return tiny(family, surrogate=made.parameters(CONFIGS[family]))


def feedback_of(surrogate: Part, site: Site, data: Batch, z: Tensor) -> Feedback:
    """What a surrogate makes of the top at z [B, T, D]."""
    judge = surrogate.made_by(SURROGATES[surrogate.name].make)
    return judge(site, data, LocalTop.open(site, data, site.model.inputs(data.texts)), z)


def plan_for(model: SplitModel, boundary: int, rule: LocalRule, **fields: Any) -> RoundPlan:
    """A plan from the model's present parameters."""
    values = {"run": "test", "round": 3, "client": 1, "layout": model.layout.digest}
    values = {**values, "seed": 11, **fields}
    key = DirectionKey(values["seed"], values["round"], values["client"])
    vectors = keeper_of(rule.directions, model.layout).start()
    values = {"key": key, "vectors": vectors, "w": model.w.clone(), **values}
    return RoundPlan(**values, boundary=boundary, rule=rule)


def participate(
    model: SplitModel,
    plan: RoundPlan,
    execution: Execution = PLAIN,
    batches: Callable[[int, int, int], Batch] = lambda client, round_number, step: batch(step),
) -> tuple[Upload, Tensor]:
    """Run a client through the wire format; returns the upload and its final parameters."""
    received = RoundPlan.from_bytes(plan.to_bytes())
    drawn = [batches(plan.client, plan.round, step) for step in range(plan.rule.local_steps)]
    steps = [parts(each, execution.micro_batch) for each in drawn]
    local = LocalParts.of(plan.rule, plan.boundary)
    upload = client_update(model, received, steps, local, execution)
    return Upload.from_bytes(upload.to_bytes()), model.w.clone()


def loss_of(model: SplitModel, data: Batch) -> Tensor:
    """The loss by the peft model's own forward pass."""
    logits = slot_logits(model.module, data)
    return cross_entropy(logits[:, data.goal.candidates], data.goal.targets)


def autograd_gradient(model: SplitModel, data: Batch) -> Tensor:
    """Its gradient by autograd, [d]."""
    trained = [p for p in model.module.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss_of(model, data), trained)
    return torch.cat([grad.reshape(-1) for grad in grads])


def whole_direction(directions: Directions, step: int, j: int) -> Tensor:
    """u_j of a local step over all coordinates, [d]."""
    pieces = [directions.direction(step, j, c) for c in directions.layout.coordinates]
    return torch.cat([torch.from_numpy(piece) for piece in pieces])


def contribution(
    plan: RoundPlan, delta: Tensor, share: float = 0.5, clients: int = 2, examples: int = 1
) -> Contribution:
    """A client's part in a round; what it sent is empty."""
    upload = Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=plan.boundary,
        layout=plan.layout,
        plan="",
        scalars=torch.zeros(plan.rule.local_steps, 0),
        difference=torch.zeros(0),
        metrics=ClientMetrics(loss=1.0, examples=1),
    )
    return Contribution(plan, upload, delta, share, clients, examples)


def averaged(
    w: Tensor, updates: list[tuple[RoundPlan, Tensor]], layout: Layout, rule: str = "mean"
) -> Tensor:
    """w_{t+1} from rebuilt updates."""
    added = (contribution(plan, delta) for plan, delta in updates)
    state = ServerState(w, 0)
    return server_round(state, added, aggregation_of(Part(rule), layout), NothingKept()).w
