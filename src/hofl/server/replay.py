"""Replay: the client's bottom segment from its scalars and its key of directions alone."""

import torch
from torch import Tensor

from hofl.core.layout import Layout
from hofl.core.optim import add_proximal
from hofl.messages import RoundPlan


def replay(plan: RoundPlan, scalars: Tensor, layout: Layout) -> Tensor:
    """Return the client's final bottom segment w_ZO^E [d_ZO], from its scalars [E, q] alone.

    Replays every step of the client's optimizer: AdamW is not linear in its gradients, so the
    scalars cannot simply be summed as in Eq. (9).
    """
    rule, cut, directions = plan.rule, layout.cut(plan.boundary), plan.directions(layout)
    w_0, w = plan.w[:cut], plan.w[:cut].clone()
    g, state = torch.empty(cut), rule.optimizer.init(w)
    for e, s in enumerate(scalars):
        directions.combine(s.numpy(), e, plan.boundary, out=g.numpy())
        add_proximal(g, w, w_0, rule.proximal)
        rule.optimizer.step(w, g, state)
    return w
