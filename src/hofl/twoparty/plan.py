"""What each role of a split workflow needs, from the model's configuration alone.

The roles' own steps run on tensors without data, as in ``hofl.memory.trace``: the client's with a
top that only counts what it is sent, the server's on an activation that came from nowhere.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from hofl.core.batch import Batch
from hofl.core.directions import DirectionKey, Gaussian
from hofl.local.bottom import ZerothOrder
from hofl.local.site import Site
from hofl.local.step import LocalParts, hybrid_gradients
from hofl.local.top import Gradients, LocalTop
from hofl.memory.hollow import META, without_data
from hofl.memory.live import LiveBytes
from hofl.memory.meter import TRANSIENT, Meter
from hofl.memory.workload import Workload
from hofl.models.halves import Half, half_bytes
from hofl.models.split import SplitModel
from hofl.rules import SURROGATES
from hofl.twoparty.setting import FIRST


@dataclass(frozen=True, kw_only=True)
class RoleCost:
    """Client and server at one boundary.

    Args:
        boundary: b.
        client_bytes: peak of a client: weights of its half, adapter, optimizer, activations.
        server_bytes: the same of the server, on one client's batch.
        client_passes: blocks run per batch, forward and backward counted apart.
        server_passes: the same on the server.
        up_bytes: activations that a client sends per batch that it exchanges.
        down_bytes: boundary gradients and losses that it gets.
        weights_bytes: bottom and auxiliary head, where they travel.
    """

    boundary: int
    client_bytes: int
    server_bytes: int
    client_passes: float
    server_passes: float
    up_bytes: int
    down_bytes: int
    weights_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass
class _CountingTop:
    """Stands for the server: counts what it is sent and sends back."""

    up: int = 0
    down: int = 0
    probes: int = 0

    def gradients(self, z: Tensor, *, to_boundary: bool) -> Gradients:
        self._sent(z)
        delta = torch.empty_like(z) if to_boundary else None
        self.down += 4 * z.numel() if to_boundary else 0
        return Gradients(torch.zeros((), device=META), torch.zeros(0, device=META), delta)

    def loss(self, z: Tensor) -> Tensor:
        self._sent(z)
        self.probes += 1
        return torch.zeros((), device=META)

    def _sent(self, z: Tensor) -> None:
        self.up += 4 * z.numel()
        self.down += 4  # the loss


def role_cost(
    model: SplitModel, workload: Workload, boundary: int, averages_weights: bool
) -> RoleCost:
    """Return the costs at a boundary; ``model`` is a hollow one, with the surrogate's parameters.

    Args:
        model: without data.
        workload: rule and batch.
        boundary: b, in 1..L-1.
        averages_weights: whether the clients' weights travel.
    """
    cut, rule = model.layout.cut(boundary), workload.rule
    model.keep(0)
    top = _CountingTop()
    counter = LiveBytes(META)
    meter = Meter(counter, model)
    with without_data(), counter, meter.watching(), counter.making(TRANSIENT):
        w = torch.empty(cut, device=META)
        moments = rule.optimizer.init(w)
        surrogate = rule.surrogate.made_by(SURROGATES[rule.surrogate.name].make)
        parts = LocalParts(ZerothOrder(rule), surrogate, lambda site, part, inputs: top)
        directions = Gaussian(DirectionKey(0, 0, 0), model.layout)
        site = Site(model, boundary, directions, FIRST)
        hybrid_gradients(site, [workload.batch()], parts)
        del w, moments
    client = half_bytes(model, Half.BOTTOM, boundary) + counter.peak
    server, passes = _server(model, workload, boundary, top.probes)
    if SURROGATES[rule.surrogate.name].judges_alone:
        top.down = 0
    return RoleCost(
        boundary=boundary,
        client_bytes=client,
        server_bytes=server,
        client_passes=meter.tokens / workload.tokens,
        server_passes=passes,
        up_bytes=top.up,
        down_bytes=top.down,
        weights_bytes=4 * cut if averages_weights else 0,
    )


def _server(model: SplitModel, workload: Workload, boundary: int, probes: int) -> tuple[int, float]:
    """Return peak and passes of the server on one batch."""
    rule, width = workload.rule, model.config.get_text_config().hidden_size
    counter = LiveBytes(META)
    meter = Meter(counter, model)
    with without_data(), counter, meter.watching(), counter.making(TRANSIENT):
        w = torch.empty(model.layout.size - model.layout.cut(boundary), device=META)
        moments = rule.optimizer.init(w)
        batch: Batch = workload.batch()
        z = torch.empty(1, workload.tokens, width, dtype=model.compute_dtype, device=META)
        top = LocalTop(model, model.inputs(batch.texts), batch, boundary)
        top.gradients(z, to_boundary=SURROGATES[rule.surrogate.name].gives_delta)
        with torch.no_grad():
            for _ in range(probes):
                top.loss(z)
        del w, moments
    return half_bytes(model, Half.TOP, boundary) + counter.peak, meter.tokens / workload.tokens
