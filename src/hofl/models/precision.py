"""Storage apart from compute: a block stored in BF16, or not in memory at all, computes in FP32.

Finite differences drown in BF16's rounding (an error of 185 % of the signal was measured at the
paper's radius), so frozen weights may be *stored* small but are up-cast for the block that runs.
Those that are away (on disk, quantised) are restored for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Reader = Callable[[], Tensor]
"""Returns a frozen weight in memory, on its device."""


@contextmanager
def computing_in(
    module: nn.Module, dtype: torch.dtype, away: Mapping[nn.Parameter, Reader]
) -> Iterator[None]:
    """Put the frozen tensors of ``module`` into ``dtype`` inside; afterwards they are as stored.

    When a graph is recorded, autograd saves a reference to the *stored* tensor and up-casts (or
    reads) again in the backward pass: the copies of a block do not outlive its forward pass.
    """

    def value(parameter: nn.Parameter) -> Tensor:
        read = away.get(parameter)
        return (parameter if read is None else read()).to(dtype)

    copies: dict[int, tuple[nn.Module, str, nn.Parameter]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or parameter.requires_grad:
                continue
            if parameter in away or (parameter.is_floating_point() and parameter.dtype != dtype):
                copy = nn.Parameter(value(parameter), requires_grad=False)
                copies[copy.untyped_storage()._cdata] = (owner, name, parameter)
                owner._parameters[name] = copy
    if not copies:
        yield
        return

    def pack(tensor: Tensor) -> Any:
        copied = copies.get(tensor.untyped_storage()._cdata)
        if copied is None:
            return tensor
        return copied[2], tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        stored, size, stride, offset = packed
        return value(stored).as_strided(size, stride, offset)

    try:
        if torch.is_grad_enabled():
            with saved_tensors_hooks(pack, unpack):
                yield
        else:  # no graph, so nothing to pack; forward-mode tensors have no storage
            yield
    finally:
        for owner, name, parameter in copies.values():
            owner._parameters[name] = parameter
