"""The shared coordinates: which trainable parameters exist, in which order, in which block.

Every trainable parameter sits at a fixed place of one flat vector ``w`` of length d, in model
order. A boundary b then cuts ``w`` as Eq. (2) writes it, ``w = [w_ZO; w_FO]``: blocks 0..b-1 first,
blocks b..L-1 after them. Server, messages and optimizers only ever see ``w`` and this layout, so
none of them needs the model.

A surrogate may own trainable parameters (an auxiliary head). They come before all blocks and so
belong to the bottom at every boundary: they are learnt and replayed as the bottom is.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from hofl.core.errors import HoflError

SURROGATE = -1
"""In place of a block's number: the parameter belongs to the surrogate."""


@dataclass(frozen=True)
class Coordinate:
    """One trainable parameter: ``w[start:stop]`` in ``shape`` is ``name`` of ``block``."""

    index: int
    name: str
    shape: tuple[int, ...]
    block: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of scalars in this parameter."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Names, shapes and blocks of all trainable parameters, in model order.

    Args:
        names: parameter names within their block.
        shapes: their shapes.
        blocks: the transformer block each belongs to, or ``SURROGATE``; never decreasing.
        num_blocks: L; a boundary lies in 0..L.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...]
    num_blocks: int

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.shapes) == len(self.blocks)
        assert list(self.blocks) == sorted(self.blocks), "blocks must not decrease"

    @cached_property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """All coordinates with their places in the flat vector."""
        stops = tuple(accumulate(prod(shape) for shape in self.shapes))
        starts = (0, *stops)[: len(stops)]
        rows = zip(self.names, self.shapes, self.blocks, starts, stops, strict=True)
        return tuple(Coordinate(index, *row) for index, row in enumerate(rows))

    @cached_property
    def by_block(self) -> tuple[tuple[Coordinate, ...], ...]:
        """The coordinates of each block."""
        return tuple(
            tuple(c for c in self.coordinates if c.block == block)
            for block in range(self.num_blocks)
        )

    @cached_property
    def surrogate(self) -> tuple[Coordinate, ...]:
        """The coordinates of the surrogate's parameters."""
        return tuple(c for c in self.coordinates if c.block == SURROGATE)

    @cached_property
    def _cuts(self) -> tuple[int, ...]:
        sizes = (sum(c.size for c in block) for block in (self.surrogate, *self.by_block))
        return tuple(accumulate(sizes))

    @property
    def size(self) -> int:
        """d, the number of trainable scalars."""
        return self.coordinates[-1].stop if self.coordinates else 0

    def cut(self, boundary: int) -> int:
        """Return d_ZO at a boundary: ``w[:cut]`` is the bottom segment, ``w[cut:]`` the top one."""
        if not 0 <= boundary <= self.num_blocks:
            raise HoflError(
                f"boundary {boundary} is out of range: the model has {self.num_blocks} blocks. "
                f"Use 0 (all first-order) to {self.num_blocks} (no first-order block)."
            )
        return self._cuts[boundary]

    def bottom(self, boundary: int) -> Iterator[Coordinate]:
        """Return the bottom's coordinates: the surrogate's, then those of blocks 0..b-1."""
        return (c for block in (self.surrogate, *self.by_block[:boundary]) for c in block)

    def block_slice(self, block: int) -> slice:
        """Return a block's place in the flat vector (empty when nothing in it is trained)."""
        return slice(self._cuts[block], self._cuts[block + 1])

    @cached_property
    def digest(self) -> str:
        """A short fingerprint; two sides that agree on it agree on every coordinate."""
        text = json.dumps([self.names, self.shapes, self.blocks, self.num_blocks])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
