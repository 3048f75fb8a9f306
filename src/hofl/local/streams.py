"""The joint pass: the anchor and all perturbed copies go through the bottom together.

z_j = f_ZO(x; w + c u_j) does not depend on delta, so every stream can advance block by block side
by side. Each block's frozen weights are then read (or up-cast, or paged in) once per step rather
than once per stream, and a block's directions live only while that block runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hofl.directions import direction
from hofl.layout import Coordinate
from hofl.local.site import Site
from hofl.models.adapters import ADAPTER, lora_layers
from hofl.models.split import BlockInputs, SplitModel


@dataclass(frozen=True)
class Stream:
    """One copy of the bottom at w + scale * u_j; scale 0 is the anchor."""

    j: int
    scale: float


ANCHOR = Stream(j=0, scale=0.0)


JOINT_TOKENS = 4096
"""A product of so many rows runs at full speed: more streams at once would only cost memory."""


@torch.no_grad()
def joint_pass(site: Site, streams: Sequence[Stream]) -> list[Tensor]:
    """Boundary activations [B, T, D] of all streams, without a graph.

    In each block the streams go in groups of up to ``JOINT_TOKENS`` tokens, at least one stream.
    """
    model = site.model
    run = _group_through_lora
    size = max(1, JOINT_TOKENS // site.input_ids.numel())
    if not all(".lora_A." in c.name or ".lora_B." in c.name for c in model.layout.coordinates):
        run, size = _stream_through, 1  # whole weights are perturbed: no product can be shared
    groups = [streams[i : i + size] for i in range(0, len(streams), size)]
    inputs = {n: model.inputs(site.input_ids.repeat(n, 1)) for n in {len(g) for g in groups}}
    hidden = [inputs[len(group)].hidden for group in groups]  # [n * B, T, D] each, stream-major
    for index in range(site.boundary):
        with model.computing(model.blocks[index]):  # read or up-cast once for all groups
            for k, group in enumerate(groups):
                hidden[k] = run(site, index, group, hidden[k], inputs[len(group)])
    pairs = zip(hidden, groups, strict=True)
    return [z for several, group in pairs for z in several.chunk(len(group))]


def _group_through_lora(
    site: Site, index: int, group: Sequence[Stream], hidden: Tensor, inputs: BlockInputs
) -> Tensor:
    with _stacked_lora(site.model, index, stream_values(site, index, group)):
        return site.model.block(index, hidden, inputs)


def _stream_through(
    site: Site, index: int, group: Sequence[Stream], hidden: Tensor, inputs: BlockInputs
) -> Tensor:
    values = {name: stacked[0] for name, stacked in stream_values(site, index, group).items()}
    return site.model.block(index, hidden, inputs, values)


def stream_values(site: Site, index: int, streams: Sequence[Stream]) -> dict[str, Tensor]:
    """Parameters of one block in every stream, [S, *shape] by name within the block."""
    values = {}
    for c in site.model.layout.by_block[index]:
        anchor = site.model.w[c.start : c.stop].view(c.shape)
        stacked = anchor.expand(len(streams), *c.shape).clone()
        for j in sorted({stream.j for stream in streams if stream.scale}):
            u = direction_at(site, j, c)
            for s, stream in enumerate(streams):
                if stream.scale and stream.j == j:
                    stacked[s].add_(u, alpha=stream.scale)
        values[c.name] = stacked
    return values


def direction_at(site: Site, j: int, coordinate: Coordinate) -> Tensor:
    """u_j for one parameter, in its shape, on the model's device."""
    values = direction(site.key, site.step, j, coordinate.index, coordinate.size)
    return torch.from_numpy(values).view(coordinate.shape).to(site.model.device)


@contextmanager
def _stacked_lora(model: SplitModel, index: int, values: dict[str, Tensor]) -> Iterator[None]:
    """Inside, the block's LoRA layers apply stream s of ``values`` to rows s of the batch."""
    layers = lora_layers(model.blocks[index])
    for path, layer in layers.items():
        a = values[f"{path}.lora_A.{ADAPTER}.weight"]  # [S, r, in]
        b = values[f"{path}.lora_B.{ADAPTER}.weight"]  # [S, out, r]
        layer.forward = _stacked_forward(layer, a, b)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


def _stacked_forward(layer: Any, a: Tensor, b: Tensor) -> Any:
    scaling = layer.scaling[ADAPTER]

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = layer.base_layer(x)  # one large product for all streams, [S * B, T, out]
        rows = x.reshape(len(a), -1, x.shape[-1]).to(a.dtype)  # [S, B * T, in]
        low = torch.bmm(rows, a.transpose(1, 2))  # [S, B * T, r]
        flat = base.view(len(a), -1, base.shape[-1])
        if flat.dtype == low.dtype:
            flat.baddbmm_(low, b.transpose(1, 2), alpha=scaling)
            return base
        return (flat + torch.bmm(low, b.transpose(1, 2)) * scaling).to(base.dtype).view_as(base)

    return forward
