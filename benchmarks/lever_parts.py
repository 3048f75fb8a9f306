"""Learning levers plugged in from outside: a centred loss for delta, and steps of the server.

They are measured by ``benchmarks/levers.py``; :func:`enter` makes them known by name.

The *centred* loss of a batch is its cross-entropy with the bias b* [C] that makes the mean
prediction equal the mean label: then delta says how the examples of a batch are told apart, and no
longer that all of them should lean towards one answer. At b* the mean loss is least in b, so delta
is the gradient of min_b loss(scores + b), and b* needs no derivative of its own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from hofl.core.batch import Batch, ChooseWord, Head
from hofl.local.site import Site
from hofl.local.streams import Stream
from hofl.local.surrogates import Feedback, Surrogate, inner
from hofl.local.top import LocalTop
from hofl.rules import SURROGATES, SurrogateTraits
from hofl.server.step import SERVER_STEPS, Memory

SWEEPS = 200
"""Most sweeps for b*; eight examples of two classes need about ten."""


def centring_bias(scores: Tensor, targets: Tensor) -> Tensor:
    """Return b* [C] with mean softmax(scores + b*) in proportion to the labels' mean.

    It is unique up to a constant, which is chosen so that b* sums to zero. Classes that the batch
    lacks keep b = 0, and so does a batch of one class: their b* would be infinite.

    Args:
        scores: [B, C].
        targets: [B] the right classes.
    """
    scores = scores.double()
    wanted = one_hot(targets, scores.shape[1]).double().mean(0)  # [C]
    present = wanted > 0
    bias = torch.zeros_like(wanted)
    for _ in range(SWEEPS):
        got = (scores + bias).softmax(1).mean(0)
        change = torch.where(present, wanted.log() - got.log(), 0.0)
        change = torch.where(present, change - change[present].mean(), 0.0)
        bias += change
        if change.abs().max() < 1e-7:
            break
    return bias


@dataclass(frozen=True)
class CentredChoice(ChooseWord):
    """Pick one of C words, with the scores shifted by b*."""

    def losses(self, head: Head) -> Tensor:
        """Return cross-entropies over the words at b*, [B]."""
        scores = head.words(self.candidates)
        bias = centring_bias(scores.detach(), self.targets)
        return cross_entropy(scores + bias.to(scores.dtype), self.targets, reduction="none")

    def to(self, device: torch.device) -> "CentredChoice":
        """Copy to another device."""
        return CentredChoice(self.candidates.to(device), self.targets.to(device))


@dataclass(frozen=True)
class CentredFeedback(Feedback):
    """Like the linear surrogate's, with the centred delta."""

    delta: Tensor
    anchor: Tensor

    def change(self, moved: Tensor, stream: Stream) -> Tensor:
        """Return <delta, z_j - z_0>."""
        return inner(self.delta, moved - self.anchor)


class Centred(Surrogate):
    """The linear surrogate with the centred delta.

    Args:
        whole: train the top by the centred loss, too; with exact bottoms this is FedAvg on that
            loss. Otherwise delta is rescaled to the norm that it has without centring.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole

    def __call__(self, site: Site, batch: Batch, top: LocalTop, z: Tensor) -> Feedback:
        """Run the top down to the boundary; for the bottom's delta alone, twice."""
        goal = CentredChoice(batch.goal.candidates, batch.goal.targets)
        centred = replace(top, batch=replace(batch, goal=goal))
        loss, top_gradient, delta = centred.gradients(z, to_boundary=True)
        if not self.whole:
            loss, top_gradient, plain = top.gradients(z, to_boundary=True)
            delta = delta * (plain.norm() / delta.norm()) if delta.norm() > 0 else delta
        return CentredFeedback(loss.item(), top_gradient, delta, z.detach())


class Longer:
    """Take the aggregated update ``scale`` times: no memory."""

    adds = False

    def __init__(self, scale: float = 2.0) -> None:
        self._scale = scale

    def __call__(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the longer step; keep nothing."""
        return self._scale * update, {}


class Adam:
    """FedAdam (Reddi et al., 2021), with the bias correction of Adam."""

    adds = False

    def __init__(
        self, lr: float = 2e-3, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-4
    ) -> None:
        self._lr, self._betas, self._eps = lr, (beta1, beta2), eps

    def __call__(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the step; keep both moments, and how many steps there were."""
        zeros = torch.zeros_like(update)
        m, v = (memory[name].double() if memory else zeros for name in ("m", "v"))
        steps = 1 + (memory["steps"] if memory else torch.zeros(1))
        first, second = self._betas
        m = first * m + (1 - first) * update
        v = second * v + (1 - second) * update * update
        scale = (v / (1 - second ** steps.item())).sqrt() + self._eps
        move = self._lr * m / (1 - first ** steps.item()) / scale
        return move, {"m": m.float(), "v": v.float(), "steps": steps}


def enter() -> None:
    """Enter the levers into the registries."""
    SURROGATES["centred"] = SurrogateTraits(make=Centred, judges=True, gives_delta=True)
    SERVER_STEPS["longer"] = Longer
    SERVER_STEPS["adam"] = Adam
