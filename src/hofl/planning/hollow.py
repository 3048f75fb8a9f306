"""Models without data: PyTorch's ``meta`` tensors have shapes and storages of a size, but no bytes.

The project's own code runs on them unchanged and in a fraction of a second, whatever the size of
the model. Two things need help: numbers that are read from a tensor, and the choice of an attention
kernel, which for meta tensors would fall on the plain one with its [T, T] scores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hofl.models.adapters import FullBlocks, Lora
from hofl.models.loading import build_split
from hofl.models.split import SplitModel

META = torch.device("meta")
_aten = torch.ops.aten


def hollow_model(
    config: Any,
    *,
    adapter: Lora | FullBlocks,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    form: str | None = None,
) -> SplitModel:
    """The split model of a Hugging Face configuration, without weights.

    Frozen block weights can be streamed, as from files in the storage dtype, unless they are kept
    in memory in a quantised ``form``.
    """
    with META:
        model = build_split(
            config,
            None,
            adapter=adapter,
            storage_dtype=storage_dtype,
            compute_dtype=compute_dtype,
            device=META,
            form=form,
        )
    if form is not None:
        return model
    frozen = [p for block in model.blocks for p in block.parameters() if not p.requires_grad]
    model.on_disk = {p: partial(torch.empty, p.shape, dtype=p.dtype, device=META) for p in frozen}
    return model


@contextmanager
def without_data() -> Iterator[None]:
    """Inside, code that reads numbers and calls fused attention runs on hollow tensors too."""
    with _Reads(), _FusedAttention():
        yield


class _Reads(TorchDispatchMode):
    """A number read from a hollow tensor is 1; a copy to the CPU is zeros, and real.

    The one condition read from a tensor on the way through a model is whether a batch is *not*
    packed from several texts, which is true here: 1 is the right answer.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default and args[0].is_meta:
            return 1
        if func is _aten._to_copy.default and args[0].is_meta:
            device = kwargs.get("device") or META
            if device != META:
                dtype = kwargs.get("dtype") or args[0].dtype
                return torch.zeros(args[0].shape, dtype=dtype, device=device)
        return func(*args, **kwargs)


class _FusedAttention(TorchFunctionMode):
    """Attention by the kernel that the CPU would use.

    The fused kernels of CPU and GPU keep the same: the output and one number per query and head.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention and args[0].is_meta:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """[B, H, T, D] -> [B, H, T, D], as PyTorch does it on the CPU."""
    small = [_few(x).requires_grad_(x.requires_grad) for x in (query, key, value)]
    mask = None if attn_mask is None else torch.ones(1, 1, 2, 2, dtype=attn_mask.dtype)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    choice = _aten._fused_sdp_choice(*small, mask, dropout_p, is_causal, **options)
    if choice != SDPBackend.FLASH_ATTENTION.value:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # fused kernels add their mask
        attn_mask = torch.where(attn_mask, query.new_zeros(()), query.new_full((), float("-inf")))
    fused = _aten._scaled_dot_product_flash_attention_for_cpu
    output: Tensor = fused(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return output


def _few(x: Tensor) -> Tensor:
    """A real tensor of two tokens with the heads, width and dtype of x [B, H, T, D]."""
    return torch.zeros(1, x.shape[1], 2, x.shape[3], dtype=x.dtype)
