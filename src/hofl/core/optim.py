"""Local optimizers, element-wise and in place, so that the server can replay them exactly.

Each operation is rounded once (no fused multiply-add): IEEE 754 then fixes every bit, whatever the
vector width, the chunking or the device. State is reset at every participation, as in the paper,
so a replay needs nothing but the starting point and the gradients.

Coupled operations, such as clipping by the norm of the whole gradient, are not offered: the server
never sees the client's top gradient, so a replay of the bottom could not follow them.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hofl.core.errors import HoflError

if TYPE_CHECKING:  # listing methods and reading configurations must not load torch
    from torch import Tensor


@dataclass
class Moments:
    """AdamW's buffers for one segment; SGD leaves them empty."""

    m: "Tensor | None" = None
    v: "Tensor | None" = None
    decay1: float = 1.0  # b1 ** e and b2 ** e by repeated multiplication: pow() differs by machine
    decay2: float = 1.0


@dataclass(frozen=True, kw_only=True)
class SGD:
    """w <- (1 - lr * weight_decay) w - lr g, Eq. (7)."""

    lr: float
    weight_decay: float = 0.0
    name: str = field(default="sgd", init=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)

    @property
    def sums(self) -> bool:
        """Whether steps along gradients are one step along their sum, rounding aside, Eq. (9)."""
        return self.weight_decay == 0

    def init(self, w: "Tensor") -> Moments:
        """Return empty moments: SGD keeps no state."""
        return Moments()

    def step(self, w: "Tensor", g: "Tensor", state: Moments) -> None:
        """Take one step in place."""
        if self.weight_decay:
            w.mul_(1.0 - self.lr * self.weight_decay)
        w.sub_(g.mul_(self.lr))


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW with decoupled weight decay (appendix "Seed Replay for Local AdamW")."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 5e-4
    name: str = field(default="adamw", init=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise HoflError(f"beta1, beta2 must lie in [0, 1), got {self.beta1}, {self.beta2}.")
        if not self.eps > 0:
            raise HoflError(f"eps must be positive, got {self.eps}.")

    @property
    def sums(self) -> bool:
        """Return False: it is not linear in its gradients."""
        return False

    def init(self, w: "Tensor") -> Moments:
        """Return zero moments."""
        return Moments(m=w.new_zeros(w.shape), v=w.new_zeros(w.shape))

    def step(self, w: "Tensor", g: "Tensor", state: Moments) -> None:
        """Take one step in place, with two temporaries of the segment's size."""
        m, v = state.m, state.v
        assert m is not None
        assert v is not None
        state.decay1 *= self.beta1
        state.decay2 *= self.beta2
        m.mul_(self.beta1).add_(g.mul(1.0 - self.beta1))
        v.mul_(self.beta2).add_(g.mul_(g).mul_(1.0 - self.beta2))
        # Multiply by the reciprocal: division by a scalar is rounded differently on CPU and GPU.
        update = m.mul(1.0 / (1.0 - state.decay1))
        scale = v.mul(1.0 / (1.0 - state.decay2)).sqrt_().add_(self.eps)
        w.mul_(1.0 - self.lr * self.weight_decay)
        w.sub_(update.div_(scale).mul_(self.lr))


Optimizer = SGD | AdamW
LARGEST = 1e300
OPTIMIZERS: dict[str, type[SGD] | type[AdamW]] = {"sgd": SGD, "adamw": AdamW}


def optimizer_from(spec: dict[str, Any]) -> Optimizer:
    """Make an optimizer from the plain values of a plan or a configuration."""
    values = dict(spec)
    name = values.pop("name", None)
    if name not in OPTIMIZERS:
        raise HoflError(f"unknown optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}.")
    if "clip_norm" in values:
        raise HoflError(
            "clip_norm couples all coordinates, and the server cannot replay it from scalars. "
            "Remove it, or limit uploads with server.max_norm."
        )
    known = [option.name for option in fields(OPTIMIZERS[name]) if option.init]
    extra = sorted(set(values) - set(known))
    if extra:
        raise HoflError(f"{name} has no option {extra[0]!r}: it takes {', '.join(known)}.")
    for key, value in values.items():
        # Comparing refuses NaN, too, and integers that are too big for a float.
        if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
            raise HoflError(f"{key} must be a finite number, got {value!r:.40}.")
    if "lr" not in values:
        raise HoflError(f"{name} needs a learning rate: set lr.")
    return OPTIMIZERS[name](**values)


def optimizer_spec(optimizer: Optimizer) -> dict[str, Any]:
    """Return plain values from which :func:`optimizer_from` makes the same optimizer."""
    return asdict(optimizer)


def add_proximal(g: "Tensor", w: "Tensor", anchor: "Tensor", strength: float) -> None:
    """Add FedProx's term, g <- g + strength (w - w_t); a replay knows w and w_t, too."""
    if strength:
        g.add_(w.sub(anchor).mul_(strength))


def _check(lr: float, weight_decay: float) -> None:
    if not 0 < lr < math.inf:
        raise HoflError(f"lr must be positive and finite, got {lr}.")
    if not 0 <= weight_decay * lr < 1:
        raise HoflError(f"lr * weight_decay must lie in [0, 1), got {lr * weight_decay}.")
