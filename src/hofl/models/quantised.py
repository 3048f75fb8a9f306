"""Frozen block weights in GGUF's forms ``q8_0`` and ``q4_1``, de-quantised when a block runs.

Both cut a row into groups of 32 values: a half-precision scale and signed bytes (8.5 bits per
value), or a scale, an offset and half bytes (5 bits). The ``gguf`` library quantises. Weights that
came from such a file, like the built-in model's, lose nothing by being quantised again. Matrices
whose rows are not a multiple of 32 stay as they are, as do vectors.
"""

from collections.abc import Callable

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quantize
from torch import Tensor, nn

from hofl.models.precision import Reader

GROUP = 32


def quantise(blocks: list[nn.Module], form: str) -> dict[nn.Parameter, Reader]:
    """Quantise frozen matrices to ``form``, in place; return how to restore each of them."""
    kind, restore = GGMLQuantizationType[form.upper()], FORMS[form]
    readers: dict[nn.Parameter, Reader] = {}
    for block in blocks:
        for parameter in block.parameters():
            if parameter.requires_grad or parameter.dim() != 2 or parameter.shape[1] % GROUP:
                continue
            shape, groups = parameter.shape, _quantised(parameter, kind)
            parameter.data = groups
            readers[parameter] = _reader(groups, shape, restore)
    return readers


def _quantised(parameter: Tensor, kind: GGMLQuantizationType) -> Tensor:
    """Return the groups of a matrix's rows, uint8; for a meta tensor, meta groups."""
    if parameter.is_meta:
        rows, columns = parameter.shape
        width = columns // GROUP * GGML_QUANT_SIZES[kind][1]
        return torch.empty(rows, width, dtype=torch.uint8, device=parameter.device)
    groups = quantize(parameter.float().cpu().numpy(), kind)
    return torch.from_numpy(groups).to(parameter.device)


def _reader(groups: Tensor, shape: torch.Size, restore: Callable[[Tensor], Tensor]) -> Reader:
    return lambda: restore(groups).view(shape)


def _from_q8_0(groups: Tensor) -> Tensor:
    """Restore groups of scale d (2 bytes) and 32 signed bytes: value d * byte."""
    rows = groups.view(-1, 2 + GROUP)
    return rows[:, 2:].contiguous().view(torch.int8).float().mul_(_half(rows, 0))


def _from_q4_1(groups: Tensor) -> Tensor:
    """Restore groups of scale d, offset m, 16 bytes: value d * nibble + m, low nibbles first."""
    rows = groups.view(-1, 4 + GROUP // 2)
    values = torch.empty(len(rows), GROUP, device=rows.device)
    values[:, : GROUP // 2] = rows[:, 4:] & 15
    values[:, GROUP // 2 :] = rows[:, 4:] >> 4
    return values.mul_(_half(rows, 0)).add_(_half(rows, 2))


def _half(rows: Tensor, start: int) -> Tensor:
    """Return the half-precision number at a byte of every group, float32 [groups, 1]."""
    return rows[:, start : start + 2].contiguous().view(torch.float16).float()


FORMS: dict[str, Callable[[Tensor], Tensor]] = {"q8_0": _from_q8_0, "q4_1": _from_q4_1}
