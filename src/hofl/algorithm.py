"""HO-FL (Algorithm 1): a round, ClientUpdate, Reconstruct. Every engine calls these.

Notation as in the paper: w = [w_ZO; w_FO] cut at the boundary, E local steps, q directions, scalars
s, boundary gradient delta. Clients and server share the layout, the directions and the optimizer's
``step``, so the server rebuilds the client's update bit for bit.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.errors import UploadRefused
from hofl.core.layout import Layout
from hofl.core.optim import add_proximal
from hofl.core.packing import pack, unpack
from hofl.local.site import PLAIN, Execution, Site
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.messages import WITHHELD, ClientMetrics, RoundPlan, Upload, vector_hash
from hofl.server.aggregate import Aggregation
from hofl.server.replay import replay
from hofl.server.state import Contribution, Keeper, ServerState

if TYPE_CHECKING:  # the server side never imports the model
    from hofl.models.split import SplitModel


def server_round(
    state: ServerState,
    contributions: Iterable[Contribution],
    aggregation: Aggregation,
    keeper: Keeper,
) -> ServerState:
    """Return w_{t+1} = w_t + the rebuilt updates' mean, Eq. (10), or another rule's; lines 9-14.

    ``contributions`` is lazy: one update is rebuilt at a time, in cohort order.
    """
    for contribution in contributions:
        aggregation.add(contribution)
        keeper.add(contribution)
    w = (state.w.double() + aggregation.result()).float()
    return ServerState(w, state.round + 1, keeper.result(state.vectors))


def client_update(
    model: "SplitModel",
    plan: RoundPlan,
    batches: Iterable[Sequence[Batch]],
    parts: LocalParts,
    execution: Execution = PLAIN,
) -> Upload:
    """Run E hybrid-order steps from w_t (ClientUpdate); return scalars and the top's difference."""
    rule, layout, cut = plan.rule, model.layout, model.layout.cut(plan.boundary)
    w_0, directions = plan.w.to(model.device), plan.directions(layout)
    model.load(w_0)
    model.keep(plan.boundary if execution.stream_bottom else 0)
    w_zo, w_fo = model.w[:cut], model.w[cut:]
    state_zo, state_fo = rule.optimizer.init(w_zo), rule.optimizer.init(w_fo)
    scalars, losses, examples, checks, signal, noise = [], [], 0, 0, 0.0, 0.0
    for e, batch in enumerate(batches):  # of one part or several
        site = Site(model, plan.boundary, directions, e, execution)
        g = hybrid_gradients(site, batch, parts, plan.privacy)  # Eqs. (3)-(6)
        with torch.no_grad():  # both segments move from the same anchor, Eq. (7)
            if g.bottom is not None:
                add_proximal(g.bottom, w_zo, w_0[:cut], rule.proximal)
                rule.optimizer.step(w_zo, g.bottom, state_zo)
            add_proximal(g.top, w_fo, w_0[cut:], rule.proximal)
            rule.optimizer.step(w_fo, g.top, state_fo)
        scalars.append(g.scalars)
        losses.append(g.loss)
        examples += g.examples
        if g.error is not None:
            checks, signal, noise = 1, g.scalars[0].item() ** 2, g.error**2
        del g  # free it before the next step
    dense = slice(plan.dense_start(layout), None)
    difference = (model.w[dense] - w_0[dense]).cpu()  # [d_FO], Eq. (8)
    metrics = ClientMetrics(sum(losses) / len(losses), examples, checks, signal, noise)
    if plan.privacy is not None:
        difference, metrics = plan.privacy.difference(difference), WITHHELD
    return Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=plan.boundary,
        layout=plan.layout,
        plan=plan.digest(),
        scalars=torch.stack(scalars),  # [E, q]
        difference=pack(difference, rule.uplink_bits, plan.rounding()),
        metrics=metrics,
        bottom_hash=vector_hash(w_zo) if plan.verify and len(scalars[0]) else "",
    )


def reconstruct(plan: RoundPlan, upload: Upload, layout: Layout) -> Tensor:
    """Rebuild a client's update Delta [d] from seeds, scalars and the top's difference.

    Raises:
        UploadRefused: the replayed bottom has another hash than the client's, or the rebuilt
            parameters overflow.
    """
    delta = torch.zeros(layout.size)
    dense = delta[plan.dense_start(layout) :]
    dense.copy_(unpack(upload.difference, plan.rule.uplink_bits, len(dense)))
    if upload.scalars.shape[1] > 0:
        w_e = replay(plan, upload.scalars, layout)
        if plan.verify and vector_hash(w_e) != upload.bottom_hash:
            raise UploadRefused("the replayed bottom segment is not the one the client reports")
        delta[: len(w_e)] = w_e - plan.w[: len(w_e)]
    if not torch.isfinite(plan.w + delta).all():
        raise UploadRefused("the rebuilt parameters are not finite")
    return delta
