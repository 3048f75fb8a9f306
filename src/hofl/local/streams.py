"""The joint pass: the anchor and all perturbed copies go through the bottom together.

z_j = f_ZO(x; w + c u_j) does not depend on delta, so all streams can advance together, block by
block. Each block's frozen weights are then read (or up-cast, or paged in) once per step rather
than once per stream, and a block's directions live only while that block runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hofl.core.layout import Coordinate
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
"""A product of this many rows runs at full speed: more streams at once would only cost memory."""


@torch.no_grad()
def joint_pass(site: Site, inputs: BlockInputs, streams: Sequence[Stream]) -> list[Tensor]:
    """Return the boundary activations [1, tokens, D] of all streams, without a graph.

    In each block the streams go in groups of up to ``JOINT_TOKENS`` tokens, at least one stream.
    """
    model = site.model
    run = _group_through_lora
    size = max(1, JOINT_TOKENS // inputs.hidden.shape[1])
    blocks = (c for block in model.layout.by_block for c in block)
    if not all(".lora_A." in c.name or ".lora_B." in c.name for c in blocks):
        run, size = _stream_through, 1  # whole weights are perturbed: no product can be shared
    groups = [streams[i : i + size] for i in range(0, len(streams), size)]
    hidden = [inputs.hidden.expand(len(group), -1, -1) for group in groups]  # [S, tokens, D] each
    for index in range(site.boundary):
        with model.computing(model.blocks[index]):  # read or up-cast once for all groups
            for k, group in enumerate(groups):
                hidden[k] = run(site, index, group, hidden[k], inputs)
    pairs = zip(hidden, groups, strict=True)
    return [z for stacked, group in pairs for z in stacked.chunk(len(group))]


def _group_through_lora(
    site: Site, index: int, group: Sequence[Stream], hidden: Tensor, inputs: BlockInputs
) -> Tensor:
    values = stream_values(site, site.model.layout.by_block[index], group)
    with _stacked_lora(site.model, index, values):
        return site.model.block(index, hidden, inputs)


def _stream_through(
    site: Site, index: int, group: Sequence[Stream], hidden: Tensor, inputs: BlockInputs
) -> Tensor:
    values = stream_values(site, site.model.layout.by_block[index], group)
    only = {name: stacked[0] for name, stacked in values.items()}  # the group is one stream
    return site.model.block(index, hidden, inputs, only)


def stream_values(
    site: Site, coordinates: Iterable[Coordinate], streams: Sequence[Stream]
) -> dict[str, Tensor]:
    """Return parameters, such as one block's, in every stream, [S, *shape] by name."""
    places = [(stream.j, stream.scale) for stream in streams]
    return site.model.moved(coordinates, places, partial(direction_at, site))


def direction_at(site: Site, j: int, coordinate: Coordinate) -> Tensor:
    """Return u_j for one parameter, in its shape, on the model's device."""
    values = site.directions.direction(site.step, j, coordinate)
    return torch.from_numpy(values).view(coordinate.shape).to(site.model.device)


@contextmanager
def _stacked_lora(model: SplitModel, index: int, values: dict[str, Tensor]) -> Iterator[None]:
    """Let the block's LoRA layers apply stream s of ``values`` to row s."""
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
        base = layer.base_layer(x)  # one large product for all streams, [S, N, out]
        low = torch.bmm(x.to(a.dtype), a.transpose(1, 2))  # [S, N, r]
        if base.dtype == low.dtype:
            return base.baddbmm_(low, b.transpose(1, 2), alpha=scaling)
        return (base + torch.bmm(low, b.transpose(1, 2)) * scaling).to(base.dtype)

    return forward
