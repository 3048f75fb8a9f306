"""Measure what a participation really needs, each time in a process of its own.

On the CPU there are two measures. *Allocated* is the count of PyTorch's own allocator, which
reports every allocation and release to its profiler: tensors, and what kernels take besides.
*Resident* is the process's peak resident set over its baseline: what the system saw, with all that
PyTorch does not know of (workspaces of the matrix libraries, NumPy, free memory kept for later). It
needs Linux and a writable /proc/self/clear_refs, which some containers lack. On CUDA, allocated is
the device's own counter, and there is no resident set.
"""

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hofl.algorithm import client_update
from hofl.core.process import status_bytes, tune_allocator
from hofl.local.site import PLAIN, Execution
from hofl.local.step import LocalParts
from hofl.memory.live import resident_bytes
from hofl.memory.trace import placeholder_plan
from hofl.memory.workload import Workload
from hofl.models.adapters import Lora
from hofl.models.loading import load_model
from hofl.models.split import SplitModel

_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class MeasuredPeak:
    """Peak bytes of a participation, the model included.

    Args:
        allocated: by PyTorch's allocator.
        resident: by the system; None where it cannot be measured.
    """

    allocated: int
    resident: int | None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The model to measure; see :func:`hofl.models.loading.load_model`."""

    name: str
    weights: str = "pretrained"
    rank: int = 8
    storage_dtype: str = "float32"
    compute_dtype: str = "float32"
    device: str = "auto"


def measure(
    subject: Subject,
    workload: Workload,
    boundary: int,
    execution: Execution = PLAIN,
    *,
    runs: int = 3,
) -> MeasuredPeak:
    """Return the maximum over isolated runs, as in the paper's appendix."""
    peaks = []
    # Every process is forked from one that has loaded the libraries and done nothing else.
    forks = "forkserver" in multiprocessing.get_all_start_methods()  # Windows only spawns
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload([__name__])
    for _ in range(runs):
        with ProcessPoolExecutor(1, mp_context=context) as process:
            job = process.submit(
                _measure_here, subject, workload, boundary, execution, torch.get_num_threads()
            )
            peaks.append(job.result())
    resident = [peak.resident for peak in peaks if peak.resident is not None]
    return MeasuredPeak(max(p.allocated for p in peaks), max(resident, default=None))


def _measure_here(
    subject: Subject, workload: Workload, boundary: int, execution: Execution, threads: int
) -> MeasuredPeak:
    tune_allocator()  # as in a run
    torch.set_num_threads(threads)
    model = load_model(
        subject.name,
        adapter=Lora(rank=subject.rank),
        weights=subject.weights,
        storage_dtype=subject.storage_dtype,
        compute_dtype=subject.compute_dtype,
        device=subject.device,
    ).split
    # Bring mapped weights and lazily loaded code into memory, so that they are in the baseline,
    # and let go of a streamed bottom.
    least = Workload.even(rule=workload.rule, batch_size=1, seq_len=2)
    participate(model, least, boundary, Execution(stream_bottom=execution.stream_bottom))
    gc.collect()
    weights = resident_bytes(model.module)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
        participate(model, workload, boundary, execution)
        return MeasuredPeak(torch.cuda.max_memory_allocated(model.device), None)
    baseline = _reset_resident_peak()
    participate(model, workload, boundary, execution)
    highest = status_bytes("VmHWM")
    resident = None if baseline is None or highest is None else weights + highest - baseline
    return MeasuredPeak(
        weights + allocated_by_steps(model, workload, boundary, execution), resident
    )


def participate(model: SplitModel, workload: Workload, boundary: int, execution: Execution) -> None:
    """Run a whole participation of E steps on real tensors; tokens do not matter to memory."""
    plan = placeholder_plan(model, workload.rule, boundary)
    steps = (
        [part.batch(model.device) for part in workload.parts(execution)]
        for _ in range(workload.rule.local_steps)
    )
    model.keep(boundary if execution.stream_bottom else 0)
    client_update(model, plan, steps, LocalParts.of(workload.rule, boundary), execution)


def allocated_by_steps(
    model: SplitModel, workload: Workload, boundary: int, execution: Execution
) -> int:
    """Run a participation on the CPU; return the most that PyTorch's allocator gave out at once."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        participate(model, workload, boundary, execution)
    return _allocated_peak(recorded)


def _allocated_peak(recorded: profile) -> int:
    """Return the highest running sum of what the allocator reported."""
    kineto: Any = recorded.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _reset_resident_peak() -> int | None:
    """Reset the system's record of the peak; return the resident set, or None if it cannot be."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return None
    return status_bytes("VmRSS")
