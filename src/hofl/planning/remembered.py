"""Shapes of results that are worked out once.

An operation on hollow tensors does nothing but find the shape of its result, in PyTorch's Python
code, at some 100 microseconds each. Blocks are alike, and so are their operations: from the second
block on the answers are known.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

Outcome = tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]


class Remembered:
    """Runs operations; a known one on known shapes gives new hollow tensors like the first answer.

    Only operations that return new memory are remembered: what writes into its arguments or gives
    back a view of them must really run, or the bytes would be counted twice.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Outcome | None] = {}

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Look the result up, or run the operation and write it down."""
        key = _key(func, args, kwargs)
        known = None if key is None else self._known.get(key)
        if known is not None:
            gather, results = known
            return gather(_hollow(*result) for result in results)
        result = func(*args, **kwargs)
        if key is not None and key not in self._known:
            self._known[key] = _outcome(func, (*args, *kwargs.values()), result)
        return result


def _hollow(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _key(func: Any, args: Any, kwargs: dict[str, Any]) -> Hashable | None:
    """Everything that the result's shape depends on; None if a tensor with data is among it."""
    parts: list[Any] = [func]
    for value in (*args, *kwargs.items()):
        if not _describe(value, parts):
            return None
    return tuple(parts)


def _describe(value: Any, parts: list[Any]) -> bool:
    if isinstance(value, Tensor):
        parts += (value.shape, value.stride(), value.dtype)
        return value.is_meta
    if isinstance(value, tuple | list):
        parts.append(len(value))
        return all(_describe(inner, parts) for inner in value)
    parts += (type(value), value)  # 1 and 1.0 are equal, and promote differently
    return True


def _outcome(func: Any, arguments: Iterable[Any], result: Any) -> Outcome | None:
    """How to give this result again; None if it is not new memory, or not tensors alone."""
    found = result if isinstance(result, tuple | list) else (result,)
    if func._schema.is_mutable or not all(isinstance(one, Tensor) and one.is_meta for one in found):
        return None
    storages = [one.untyped_storage() for one in found]
    taken = {one.untyped_storage()._cdata for one in _tensors(arguments)}
    new = {storage._cdata for storage in storages} - taken
    if len(new) < len(found):
        return None
    results = tuple((one.shape, one.stride(), one.dtype) for one in found)
    sizes = [_hollow(*one).untyped_storage().nbytes() for one in results]
    if sizes != [storage.nbytes() for storage in storages]:
        return None  # a part of a larger memory
    return (type(result) if isinstance(result, tuple | list) else next), results


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
