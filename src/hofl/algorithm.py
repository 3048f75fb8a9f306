"""HO-FL (Algorithm 1): ClientUpdate, Reconstruct, and the server's round. Every engine calls these.

Notation as in the paper: w = [w_ZO; w_FO] cut at the boundary, E local steps, q directions, scalars
s, boundary gradient delta. Clients and server share the layout, the direction keys, ``combine`` and
the optimizer's ``step``; that is why what the server rebuilds is what the client did, bit for bit.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hofl.batch import Batch
from hofl.directions import combine
from hofl.errors import UploadRefused
from hofl.layout import Layout
from hofl.local.execution import PLAIN, Execution
from hofl.local.step import hybrid_gradients
from hofl.messages import WITHHELD, ClientMetrics, RoundPlan, Upload, bottom_hash
from hofl.optim import add_proximal
from hofl.packing import pack, unpack
from hofl.server.aggregate import Aggregation

if TYPE_CHECKING:  # the server side never imports the model
    from hofl.local.bottom import BottomRule
    from hofl.local.surrogates import Surrogate
    from hofl.models.split import SplitModel


def client_update(
    model: "SplitModel",
    plan: RoundPlan,
    steps: Iterable[Sequence[Batch]],
    bottom: "BottomRule",
    surrogate: "Surrogate",
    execution: Execution = PLAIN,
) -> Upload:
    """ClientUpdate: E hybrid-order steps from w_t; returns scalars and the top's difference."""
    rule, b, cut = plan.rule, plan.boundary, model.layout.cut(plan.boundary)
    w_0 = plan.w.to(model.device)
    model.load(w_0)
    model.keep(b if execution.stream_bottom else 0)
    w_zo, w_fo = model.w[:cut], model.w[cut:]
    state_zo, state_fo = rule.optimizer.init(w_zo), rule.optimizer.init(w_fo)
    scalars, losses, judged, examples = [], [], [], 0
    for e, parts in enumerate(steps):  # a batch, in one part or several
        g = hybrid_gradients(model, plan, e, parts, bottom, surrogate, execution)  # Eqs. (3)-(6)
        with torch.no_grad():  # both segments move from the same anchor, Eq. (7)
            if g.bottom.gradient is not None:
                add_proximal(g.bottom.gradient, w_zo, w_0[:cut], rule.proximal)
                rule.optimizer.step(w_zo, g.bottom.gradient, state_zo)
            add_proximal(g.top, w_fo, w_0[cut:], rule.proximal)
            rule.optimizer.step(w_fo, g.top, state_fo)
        scalars.append(g.bottom.scalars)
        losses.append(g.loss)
        judged.append((g.bottom.checks, g.bottom.signal, g.bottom.noise))
        examples += g.examples
        del g  # not to be held through the next step
    checks, signal, noise = (sum(column) for column in zip(*judged, strict=True))
    dense = slice(plan.dense_start(model.layout), None)
    difference = (model.w[dense] - w_0[dense]).cpu()  # [d_FO], Eq. (8)
    metrics = ClientMetrics(sum(losses) / len(losses), examples, checks, signal, noise)
    if plan.privacy is not None:
        difference, metrics = plan.privacy.difference(difference), WITHHELD
    return Upload(
        run=plan.run,
        round=plan.round,
        client=plan.client,
        boundary=b,
        layout=plan.layout,
        plan=plan.digest(),
        scalars=torch.stack(scalars),  # [E, q]
        difference=pack(difference, rule.uplink_bits, plan.rounding()),
        metrics=metrics,
        bottom_hash=bottom_hash(w_zo) if plan.verify and len(scalars[0]) else "",
    )


def reconstruct(plan: RoundPlan, upload: Upload, layout: Layout) -> Tensor:
    """Reconstruct: the client's full update Delta [d] from seeds, scalars and the top's difference.

    Raises:
        UploadRefused: the client's hash of its bottom segment is not that of the replayed one, or
            finite scalars add up to parameters that are not.
    """
    delta = torch.zeros(layout.size)
    dense = delta[plan.dense_start(layout) :]
    dense.copy_(unpack(upload.difference, plan.rule.uplink_bits, len(dense)))
    if upload.scalars.shape[1] > 0:
        w_e = replay(plan, upload.scalars, layout)
        if plan.verify and bottom_hash(w_e) != upload.bottom_hash:
            raise UploadRefused("the replayed bottom segment is not the one the client reports")
        delta[: len(w_e)] = w_e - plan.w[: len(w_e)]
    if not torch.isfinite(plan.w + delta).all():
        raise UploadRefused("the rebuilt parameters are not finite")
    return delta


def replay(plan: RoundPlan, scalars: Tensor, layout: Layout) -> Tensor:
    """The client's final bottom segment w_ZO^E [d_ZO], from its scalars [E, q] alone.

    The trajectory is followed step by step with the client's own optimizer: AdamW is not linear in
    its gradients, so the scalars cannot simply be summed as in Eq. (9).
    """
    rule, cut = plan.rule, layout.cut(plan.boundary)
    w_0, w = plan.w[:cut], plan.w[:cut].clone()
    g, state = torch.empty(cut), rule.optimizer.init(w)
    for e, s in enumerate(scalars):
        combine(s.numpy(), plan.key, e, layout, plan.boundary, out=g.numpy())
        add_proximal(g, w, w_0, rule.proximal)
        rule.optimizer.step(w, g, state)
    return w


def server_round(
    w: Tensor, updates: Iterable[tuple[RoundPlan, Tensor]], total: Aggregation
) -> Tensor:
    """w_{t+1} = w_t + the rebuilt updates' mean, Eq. (10), or what another rule makes of them."""
    for plan, delta in updates:
        total.add(delta, plan)
    return (w.double() + total.result()).float()
