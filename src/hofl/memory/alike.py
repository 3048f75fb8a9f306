"""Which blocks are alike: one that was run stands for the others."""

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from hofl.memory.hollow import described
from hofl.models.split import BlockInputs, SplitModel

_NUMBERS_OF_BLOCKS = ("idx", "index", "layer_id", "layer_number")
"""Settings with these words in their names say which block it is, not what it does."""


class BlockKinds:
    """Numbers the kinds of a hollow model's blocks: those of one kind take the same memory."""

    def __init__(self, model: SplitModel) -> None:
        self._numbers: dict[Hashable, int] = {}
        model.keep(0)
        self._blocks = [
            (list(block.modules()), self._number(_settings(block))) for block in model.blocks
        ]

    def of(self, index: int, inputs: BlockInputs) -> int | None:
        """Return the kind of a block as it is now and is called; None if it cannot be described."""
        modules, kind = self._blocks[index]
        parts: list[Any] = [kind]
        for number, module in enumerate(modules):
            for p in module._parameters.values():
                parts.append(None if p is None else (p.shape, p.dtype, p.requires_grad))
            replaced = module.__dict__.get("forward")
            if replaced is not None:  # by the joint pass, say
                cells = [cell.cell_contents for cell in replaced.__closure__ or ()]
                seen = described([cell for cell in cells if isinstance(cell, Tensor)])
                if seen is None:
                    return None
                parts.append((number, replaced.__qualname__, seen))
        call = described(inputs.calls[index])
        return None if call is None else self._number((*parts, call))

    def _number(self, description: Hashable) -> int:
        return self._numbers.setdefault(description, len(self._numbers))


def _settings(block: nn.Module) -> Hashable:
    """Describe a block's modules, their shapes and their settings."""
    parts: list[Any] = []
    for name, module in block.named_modules():
        tensors = [*module._parameters.values(), *module._buffers.values()]
        shapes = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors]
        settings = [
            (key, value)
            for key, value in sorted(vars(module).items())
            if isinstance(value, bool | int | float | str | None)
            and not any(word in key for word in _NUMBERS_OF_BLOCKS)
        ]
        parts.append((name, type(module), *shapes, *settings))
    return tuple(parts)
