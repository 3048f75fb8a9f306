"""Learning levers plugged in from outside: a centred loss for delta, and steps of the server.

They are measured by ``benchmarks/levers.py``; :func:`enter` makes them known by name.

The *centred* loss of a batch is its cross-entropy with the bias b* [C] that makes the mean
prediction equal the mean label: then delta says how the examples of a batch are told apart, and no
longer that all of them should lean towards one answer. At b* the mean loss is least in b, so delta
is the gradient of min_b loss(scores + b), and b* needs no derivative of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from hofl.core.batch import Batch, ChooseWord, Head
from hofl.core.layout import Layout
from hofl.local.site import Site
from hofl.local.streams import Stream
from hofl.local.surrogates import Feedback, Surrogate, inner
from hofl.local.top import LocalTop
from hofl.rules import SURROGATES, SurrogateTraits
from hofl.server.aggregate import AGGREGATIONS, RunningMean, mean
from hofl.server.state import Contribution

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


Memory = tuple[Tensor, ...]
ServerStep = Callable[[Tensor, int, Memory], tuple[Tensor, Memory]]
"""(mean update [d], t, what was remembered) -> (step [d], what is remembered for t + 1)."""


def longer(scale: float) -> ServerStep:
    """Take the mean update ``scale`` times: no memory."""
    return lambda update, t, memory: (update * scale, ())


def momentum(momentum: float, lr: float) -> ServerStep:
    """Take w <- w + lr v with v <- momentum v + mean update: SGD on the negative update."""

    def step(update: Tensor, t: int, memory: Memory) -> tuple[Tensor, Memory]:
        v = update if not memory else momentum * memory[0] + update
        return lr * v, (v,)

    return step


def adam(lr: float, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-4) -> ServerStep:
    """FedAdam (Reddi et al., 2021), with the bias correction of Adam."""

    def step(update: Tensor, t: int, memory: Memory) -> tuple[Tensor, Memory]:
        m, v = memory or (torch.zeros_like(update), torch.zeros_like(update))
        m = beta1 * m + (1 - beta1) * update
        v = beta2 * v + (1 - beta2) * update * update
        scale = (v / (1 - beta2 ** (t + 1))).sqrt() + eps
        return lr * m / (1 - beta1 ** (t + 1)) / scale, (m, v)

    return step


REMEMBERED: dict[tuple[str, int], Memory] = {}
"""(run, t) -> what the server's step remembers at w_t. Of this process only: never resumed."""


@dataclass
class Stepping:
    """The mean of a cohort, and a step of the server with memory."""

    layout: Layout
    step: ServerStep
    at: tuple[str, int] | None = None
    inner: RunningMean = field(init=False)

    def __post_init__(self) -> None:
        self.inner = RunningMean(self.layout, mean)

    def add(self, contribution: Contribution) -> None:
        """Add one client's contribution."""
        self.at = (contribution.plan.run, contribution.plan.round)
        self.inner.add(contribution)

    def result(self) -> Tensor:
        """Return the step, float64 [d]; a round's step can be asked for again."""
        update = self.inner.result()
        if self.at is None:
            return update
        run, t = self.at
        step, REMEMBERED[run, t + 1] = self.step(update, t, REMEMBERED.get((run, t), ()))
        return step


def _server_momentum(layout: Layout, beta: float = 0.5, lr: float = 1.0) -> Stepping:
    return Stepping(layout, momentum(beta, lr))


def _server_adam(layout: Layout, lr: float = 2e-3, eps: float = 1e-4) -> Stepping:
    return Stepping(layout, adam(lr, eps=eps))


def _server_longer(layout: Layout, scale: float = 2.0) -> Stepping:
    return Stepping(layout, longer(scale))


def enter() -> None:
    """Enter the levers into the registries."""
    SURROGATES["centred"] = SurrogateTraits(make=Centred, judges=True, gives_delta=True)
    AGGREGATIONS["server-momentum"] = _server_momentum
    AGGREGATIONS["server-adam"] = _server_adam
    AGGREGATIONS["server-longer"] = _server_longer
