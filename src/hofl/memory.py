"""Peak memory of a piece of work, by counting live tensor storages as they come and go."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside it that are still alive, and their peak.

    Backward passes are seen too. Workspaces inside a kernel are not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then look at the storages of what it returned."""
        for value in tree_iter((args, kwargs)):
            if isinstance(value, Tensor):
                self._ignore(value)
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _ignore(self, tensor: Tensor) -> None:
        """Storages that existed before count as resident, not as made here."""
        key = tensor.untyped_storage()._cdata
        if key not in self._known:
            self._known.add(key)
            weakref.finalize(tensor.untyped_storage(), self._known.discard, key)

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class PeakBytes:
    """Result of :func:`measure_peak`, filled when the block ends."""

    value: int = 0


@contextmanager
def measure_peak(module: nn.Module, device: torch.device) -> Iterator[PeakBytes]:
    """Peak bytes while the block runs: the module's own tensors plus the work's peak."""
    result = PeakBytes()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield result
        result.value = torch.cuda.max_memory_allocated(device)
        return
    with LiveBytes() as counter:
        yield result
    result.value = resident_bytes(module) + counter.peak


def resident_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, shared ones counted once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        # Parameters may be views (of a mapped file, of the flat adapter): count what they span.
        storages[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(storages.values())


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator, Python's, NumPy's or torch's, could not give what was asked for."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's CPU allocator has no exception of its own.
    known = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in known)
