"""What a participation really needs, measured in processes of its own.

On the CPU there are two measures. *Allocated* is the count of PyTorch's own allocator, which
reports every allocation and release to its profiler: tensors, and what kernels take besides.
*Resident* is the process's peak resident set over its baseline: what the system saw, with all that
PyTorch does not know of (workspaces of the matrix libraries, NumPy, free memory kept for later). On
CUDA, allocated is the device's own counter, and there is no resident set.
"""

import gc
import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hofl.algorithm import client_update
from hofl.local.execution import PLAIN, Execution
from hofl.local.rules import resolve
from hofl.memory import resident_bytes
from hofl.models.adapters import Lora
from hofl.models.loading import load_model
from hofl.models.split import SplitModel
from hofl.planning.trace import round_plan
from hofl.planning.workload import Workload
from hofl.process import tune_allocator


@dataclass(frozen=True)
class Measured:
    """Peak bytes of a participation, the model's own included; resident is 0 where unknown."""

    allocated: int
    resident: int


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The model that is measured; see :func:`hofl.models.loading.load_model`."""

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
) -> Measured:
    """The maximum over isolated runs, as in the paper's appendix."""
    found = []
    # Every process is forked from one that has loaded the libraries and done nothing else.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for _ in range(runs):
        with ProcessPoolExecutor(1, mp_context=context) as process:
            job = process.submit(
                _measure_here, subject, workload, boundary, execution, torch.get_num_threads()
            )
            found.append(job.result())
    return Measured(max(m.allocated for m in found), max(m.resident for m in found))


def _measure_here(
    subject: Subject, workload: Workload, boundary: int, execution: Execution, threads: int
) -> Measured:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would talk
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
    # Brings mapped weights and lazily loaded code into memory, so that they are in the baseline;
    # a streamed bottom is let go of.
    least = replace(workload, batch_size=1, seq_len=2, answer_tokens=0)
    participate(model, least, boundary, Execution(stream_bottom=execution.stream_bottom))
    gc.collect()
    own = resident_bytes(model.module)
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
        participate(model, workload, boundary, execution)
        return Measured(torch.cuda.max_memory_allocated(model.device), 0)
    before = _reset_resident_peak()
    participate(model, workload, boundary, execution)
    resident = own + _status("VmHWM") - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        participate(model, workload, boundary, execution)
    return Measured(own + _allocated_peak(recorded), resident)


def participate(model: SplitModel, workload: Workload, boundary: int, execution: Execution) -> None:
    """A whole participation of E steps on real tensors; tokens do not matter to memory."""
    plan = round_plan(model, workload.rule, boundary)
    size = execution.micro_batch or workload.batch_size
    starts = range(0, workload.batch_size, size)
    steps = (
        [workload.batch(min(size, workload.batch_size - s), model.device) for s in starts]
        for _ in range(workload.rule.local_steps)
    )
    model.keep(boundary if execution.stream_bottom else 0)
    client_update(model, plan, steps, *resolve(workload.rule, boundary), execution)


def _allocated_peak(recorded: profile) -> int:
    """Highest running sum of what the allocator reported."""
    kineto: Any = recorded.profiler
    events = [e for e in kineto.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _reset_resident_peak() -> int:
    """Forget the peak so far (Linux); returns the resident set."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
