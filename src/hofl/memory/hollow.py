"""Models without data: PyTorch's ``meta`` tensors have shapes and storage sizes, but no bytes.

The client's code runs on them unchanged, whatever the size of the model. Two things need help:
numbers that are read from a tensor, and the choice of an attention kernel, which for meta tensors
would fall on the unfused one with its [T, T] scores.

An operation on meta tensors only infers the shape of its result, in PyTorch's Python code, at about
100 microseconds each. Blocks are alike, so :class:`ShapeCache` answers from the second block on.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hofl.models.adapters import FullBlocks, Lora, SurrogateParameters
from hofl.models.agreement import check_runs
from hofl.models.families import FAMILIES
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
    file_dtype: torch.dtype | None = None,
    surrogate: SurrogateParameters | None = None,
) -> SplitModel:
    """Return the split model of a Hugging Face configuration, without weights.

    Frozen block weights can be streamed, unless they are kept in memory in a quantised ``form``: as
    from files in ``file_dtype``, which is the storage dtype unless given.
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
            surrogate=surrogate,
        )
    if config.model_type not in FAMILIES:
        with META, without_data():
            check_runs(model)
    if form is not None:
        return model
    frozen = [p for block in model.blocks for p in block.parameters() if not p.requires_grad]
    model.on_disk = {p: HollowFile(p.shape, p.dtype, file_dtype or p.dtype) for p in frozen}
    return model


class HollowFile:
    """Stands for the place of a tensor in the model's files, and counts what is read from it."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, in_file: torch.dtype) -> None:
        self._shape, self._dtype, self._in_file, self.read_bytes = shape, dtype, in_file, 0

    def __call__(self) -> Tensor:
        """Return the tensor, without data; convert it as a real one would be."""
        tensor = torch.empty(self._shape, dtype=self._in_file, device=META)
        self.read_bytes += tensor.nbytes
        return tensor.to(self._dtype)

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in its file."""
        return self._shape.numel() * self._in_file.itemsize


def read_bytes(model: SplitModel) -> int:
    """Return the bytes that were read from a hollow model's files so far."""
    return sum(file.read_bytes for file in _files(model))


def streamable_bytes(model: SplitModel) -> int:
    """Return the size of a hollow model's frozen block weights in its files."""
    return sum(file.nbytes for file in _files(model))


def _files(model: SplitModel) -> list[HollowFile]:
    return [file for file in model.on_disk.values() if isinstance(file, HollowFile)]


@contextmanager
def without_data() -> Iterator[None]:
    """Let code that reads numbers and calls fused attention run on meta tensors."""
    with _Reads(), _FusedAttention():
        yield


class _Reads(TorchDispatchMode):
    """Read 1 from every meta tensor; copy one to the CPU as real zeros.

    The only condition that a model reads from a tensor is whether a batch is *not* packed from
    several texts, which is true here: 1 is the right answer.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and guarding every operation takes time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default and args[0].is_meta:
            return 1
        if func is _aten._to_copy.default and args[0].is_meta:
            device = kwargs.get("device") or META
            if device != META:
                dtype = kwargs.get("dtype") or args[0].dtype
                return torch.zeros(args[0].shape, dtype=dtype, device=device)
        return _shapes(func, args, kwargs)


class _FusedAttention(TorchFunctionMode):
    """Run attention by the kernel that the CPU would use.

    The fused kernels of CPU and GPU save the same: the output and one number per query and head.
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
    """Map [B, H, T, D] to [B, H, T, D] as PyTorch does on the CPU."""
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
    """Return a real tensor of two tokens with the heads, width and dtype of x [B, H, T, D]."""
    return torch.zeros(1, x.shape[1], 2, x.shape[3], dtype=x.dtype)


Outcome = tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]
"""How to gather the results, and size, stride and dtype of each."""


class ShapeCache:
    """Run operations; repeat a known one on known shapes as new meta tensors like its first result.

    Only operations that return new memory are cached: one that writes into its arguments or returns
    a view of them must run, or bytes would be counted twice.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Outcome | None] = {}

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Look the result up, or run the operation and remember its shapes."""
        key = _key(func, args, kwargs)
        known = None if key is None else self._known.get(key)
        if known is not None:
            gather, results = known
            return gather(_empty(*result) for result in results)
        result = func(*args, **kwargs)
        if key is not None and key not in self._known:
            self._known[key] = _outcome(func, (*args, *kwargs.values()), result)
        return result


def _empty(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _key(func: Any, args: Any, kwargs: dict[str, Any]) -> Hashable | None:
    """Return everything the result's shape depends on; None if a tensor with data is among it."""
    parts: list[Any] = [func]
    for value in (*args, *kwargs.items()):
        if not _describe(value, parts):
            return None
    return tuple(parts)


def described(*values: Any) -> Hashable | None:
    """Describe tensors by their shapes, other values as they are; None if that is not possible."""
    parts: list[Any] = []
    try:
        known = _describe(values, parts)
        hash(tuple(parts))
    except TypeError:  # a value without a hash
        return None
    return tuple(parts) if known else None


def _describe(value: Any, parts: list[Any]) -> bool:
    if isinstance(value, Tensor):
        parts += (value.shape, value.stride(), value.dtype)
        return value.is_meta
    if isinstance(value, tuple | list):
        parts.append(len(value))
        return all(_describe(inner, parts) for inner in value)
    if isinstance(value, dict):
        return _describe([*value.items()], parts)
    parts += (type(value), value)  # 1 and 1.0 are equal, and promote differently
    return True


def _outcome(func: Any, arguments: Iterable[Any], result: Any) -> Outcome | None:
    """Describe a result for reuse; None if it is not new memory, or not made of tensors alone."""
    tensors = result if isinstance(result, tuple | list) else (result,)
    if func._schema.is_mutable or not is_new(tensors, arguments):
        return None
    shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
    return (type(result) if isinstance(result, tuple | list) else next), shapes


def is_new(results: Sequence[Any], arguments: Iterable[Any]) -> bool:
    """Tell whether results are meta tensors, each in memory of its own and of its own size."""
    if not all(isinstance(result, Tensor) and result.is_meta for result in results):
        return False
    storages = [tensor.untyped_storage() for tensor in results]
    taken = {tensor.untyped_storage()._cdata for tensor in _tensors(arguments)}
    if len({storage._cdata for storage in storages} - taken) < len(results):
        return False
    alone = [_empty(t.shape, t.stride(), t.dtype).untyped_storage().nbytes() for t in results]
    return alone == [storage.nbytes() for storage in storages]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


_shapes = ShapeCache()
