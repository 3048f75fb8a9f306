"""Measure the peak memory of a computation by counting live tensor storages."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hofl.core.errors import BackwardFailed

CPU = torch.device("cpu")
OTHER = "other"


class LiveBytes(TorchDispatchMode):
    """Count the live bytes of tensors made inside it on a device, and their peak.

    Backward passes are seen too, workspaces inside a kernel are not. The caller may label what is
    being made (:meth:`making`); ``items`` then holds the bytes of each label at the peak.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__()
        self.device_type = device.type
        self.live = 0
        self.peak = 0
        self.items: dict[str, int] = {}
        self._live_items: dict[str, int] = {}
        self.kind = OTHER
        self._known: dict[int, str] = {}  # storages that are counted or ignored, and their labels

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and guarding every operation takes time

    @contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """Label the tensors made inside."""
        outer, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = outer

    def kind_of(self, tensor: Tensor) -> str:
        """Return the label of a tensor."""
        return self._known.get(tensor.untyped_storage()._cdata, OTHER)

    @contextmanager
    def span(self) -> Iterator[dict[str, int]]:
        """Measure the peak inside: the labels' bytes there, beyond those that were live before."""
        peak, items = self.peak, self.items
        held: dict[str, int] = {}
        self.peak, before = self.live, dict(self._live_items)
        self.items = before
        try:
            yield held
        finally:
            held |= {kind: size - before.get(kind, 0) for kind, size in self.items.items()}
            if peak >= self.peak:
                self.peak, self.items = peak, items

    def repeat(self, span: Mapping[str, int]) -> None:
        """Count the peak of a span that is not run again."""
        peak = self.live + sum(span.values())
        if peak > self.peak:
            kinds = {**self._live_items, **span}
            self.peak = peak
            self.items = {k: self._live_items.get(k, 0) + span.get(k, 0) for k in kinds}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then count the storages of its results."""
        kwargs = kwargs or {}
        for tensor in (*_tensors(args), *_tensors(kwargs.values())):
            self._ignore(tensor)
        result = func(*args, **kwargs)
        for tensor in _tensors(result if isinstance(result, tuple | list) else (result,)):
            if tensor.device.type == self.device_type:
                self._count(tensor)
        return result

    def _ignore(self, tensor: Tensor) -> None:
        """Leave out a storage that existed before: it is resident, not made here."""
        key = tensor.untyped_storage()._cdata
        if key not in self._known:
            self._known[key] = OTHER
            weakref.finalize(tensor.untyped_storage(), self._known.pop, key, None)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size, kind = storage.nbytes(), self.kind
        self._known[key] = kind
        self.live += size
        self._live_items[kind] = self._live_items.get(kind, 0) + size
        if self.live > self.peak:
            self.peak, self.items = self.live, dict(self._live_items)
        weakref.finalize(storage, self._release, key, size, kind)

    def _release(self, key: int, size: int, kind: str) -> None:
        self._known.pop(key, None)
        self.live -= size
        self._live_items[kind] -= size


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's values; its lists are nested at most once."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (inner for inner in value if isinstance(inner, Tensor))


class PeakBytes:
    """The result of :func:`measure_peak`, filled in when the block ends."""

    value: int = 0


@contextmanager
def measure_peak(module: nn.Module, device: torch.device) -> Iterator[PeakBytes]:
    """Measure peak bytes inside: the module's own tensors plus the peak of the work."""
    result = PeakBytes()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield result
        result.value = torch.cuda.max_memory_allocated(device)
        return
    with LiveBytes(device) as counter:
        yield result
    result.value = resident_bytes(module) + counter.peak


def resident_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers, shared ones counted once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        # Parameters may be views (of a mapped file, of the flat adapter): count what they span.
        place = tensor.untyped_storage()._cdata, tensor.storage_offset()
        storages[place] = tensor.numel() * tensor.element_size()
    return sum(storages.values())


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocation failed: Python's, NumPy's, or torch's on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, BackwardFailed) and error.__cause__ is not None:
        return out_of_memory(error.__cause__)
    # torch's CPU allocator has no exception of its own.
    known = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in known)
