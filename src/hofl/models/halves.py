"""One half of a model: the bottom or the top of a boundary, and nothing of the other read.

The structure of the whole model is built without weights, then each half reads its own from the
safetensors files. The bottom has what comes before the blocks and blocks 0..b-1, the top blocks
b..L-1, final norm and head. A head that is tied to the token table makes both read that table. A
block of the other half has empty weights: running it by mistake fails loudly.
"""

from enum import Enum
from typing import Any

import torch

from hofl.core.errors import HoflError
from hofl.models.adapters import Lora, SurrogateParameters, lora_start
from hofl.models.families import FAMILIES, family_of
from hofl.models.files import block_readers, model_without_blocks, stored_tensors
from hofl.models.split import SplitModel


class Half(Enum):
    """Which part of a model a role holds."""

    BOTTOM = "bottom"
    TOP = "top"

    def blocks(self, boundary: int, copies: int = 0) -> slice:
        """Return its blocks; a bottom with a head also holds those that the head copies."""
        return slice(0, boundary + copies) if self is Half.BOTTOM else slice(boundary, None)


def build_half(
    config: Any,
    reference: str,
    half: Half,
    boundary: int,
    *,
    adapter: Lora,
    seed: int = 0,
    storage_dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype = torch.float32,
    surrogate: SurrogateParameters | None = None,
) -> SplitModel:
    """Build one half from a configuration and the files of ``reference``, on the CPU.

    A bottom with a ``surrogate`` that has parameters also gets what its head is made of: final
    norm, unembedding and copied blocks.

    Raises:
        HoflError: the files lack a weight of this half, or the model type is not in the table.
    """
    if config.model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise HoflError(
            f"a model of type {config.model_type!r} cannot be halved: use one of {known}."
        )
    cpu, stored = torch.device("cpu"), stored_tensors(reference)
    model = model_without_blocks(
        config,
        stored,
        storage_dtype,
        cpu,
        lambda whole: _others(whole, half, with_head=surrogate is not None),
    )
    model.requires_grad_(False)
    family = family_of(model)
    blocks = family.blocks_of(model)
    if not 0 < boundary < len(blocks):
        raise HoflError(
            f"a boundary between two halves lies in 1..{len(blocks) - 1}, got {boundary}."
        )
    copies = 0 if surrogate is None else surrogate.copies
    if boundary + copies > len(blocks):
        raise HoflError(
            f"{copies} blocks of a head do not fit above boundary {boundary}: the model has "
            f"{len(blocks)}."
        )
    kept = half.blocks(boundary, copies)
    readers = block_readers(model, family, stored, storage_dtype, cpu, kept)
    if not readers:
        raise HoflError(
            f"{reference} lacks weights of the {half.value}'s blocks. Get the model again."
        )
    held = {id(block) for block in blocks[kept]}
    for block in blocks:
        if id(block) not in held:
            for parameter in block.parameters():
                parameter.data = parameter.new_empty(0)
    split = SplitModel(
        adapter.attach(model, family), family, compute_dtype, readers, surrogate=surrogate
    )
    split.load(lora_start(split.layout, seed, split.surrogate))
    split.keep(split.num_blocks)
    split.keep(0)
    return split


def half_bytes(model: SplitModel, half: Half, boundary: int) -> int:
    """Return the bytes of the weights that a half holds, of a model that may be whole.

    All of w is counted, as both halves share its coordinates.
    """
    surrogate = model.surrogate
    copies = 0 if surrogate is None else surrogate.copies
    others = _others(model.base, half, with_head=surrogate is not None)
    kept = {id(block) for block in model.blocks[half.blocks(boundary, copies)]}
    for block in model.blocks:
        if id(block) not in kept:
            others |= {id(p) for p in block.parameters()}
    trained = {id(model.parameter(c)) for c in model.layout.coordinates if c.block >= 0}
    held = [p for p in model.base.parameters() if id(p) not in others | trained]
    return sum(p.numel() * p.element_size() for p in [*held, model.w])


def _others(model: Any, half: Half, with_head: bool) -> set[int]:
    """Return the parameters around the blocks that only the other half needs, by ``id``."""
    family = family_of(model)
    last = [*family.after_blocks(model), model.get_output_embeddings()]
    after = {id(p) for part in last for p in part.parameters()}
    tied = {id(p) for p in model.get_input_embeddings().parameters()}
    if half is Half.BOTTOM:
        return set() if with_head else after - tied
    blocks = {id(p) for block in family.blocks_of(model) for p in block.parameters()}
    before = {id(p) for p in model.parameters()} - blocks - after
    shared = tied if getattr(model.config, "tie_word_embeddings", False) else set()
    return before - shared
