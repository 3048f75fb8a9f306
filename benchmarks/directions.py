"""Values per second of ``hofl.core.directions.direction``, on one thread.

The other generators keep drawing from one stream, which favours them: a direction is keyed anew at
every call. Lines with "new stream" do the same with them and are for information.
"""

from collections.abc import Callable

import numpy as np
import torch
from harness import Cell, Subject, interleave

from hofl.core.directions import DirectionKey, direction

SIZES = (8 * 576, 800 * 576)  # a LoRA matrix of SmolLM2-135M, and a hundred of them
VALUES_PER_SAMPLE = 4_000_000
OURS = "hofl direction"
TARGETS = {"numpy Philox float64": 3.0, "torch.randn": 1.0}
COLUMNS = {
    "variant": ("generator", ""),
    "size": ("values per call", ".0f"),
    "median_rate": ("million values/s, median", ".0f"),
    "best_rate": ("best", ".0f"),
    "speedup": ("direction is faster by", ".2f"),
    "target_at_least": ("target >=", ".0f"),
}


def measure(repeats: int) -> Subject:
    """All generators at both sizes; the number of threads is put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows: list[dict[str, Cell]] = []
        samples: dict[str, tuple[float, ...]] = {}
        for size in SIZES:
            loops = max(1, VALUES_PER_SAMPLE // size)
            times = interleave(_generators(size), repeats, loops=loops)
            for name, timing in times.items():
                samples[f"{name}, {size}"] = timing.samples
                row: dict[str, Cell] = {
                    "variant": name,
                    "size": size,
                    "median_rate": size / timing.median / 1e6,
                    "best_rate": size / timing.best / 1e6,
                    "speedup": timing.median / times[OURS].median,
                    "target_at_least": TARGETS.get(name),
                }
                rows.append(row)
    finally:
        torch.set_num_threads(threads)
    return Subject("directions", "directions: one thread", COLUMNS, rows, samples, TARGETS)


def _generators(size: int) -> dict[str, Callable[[], object]]:
    key = DirectionKey(seed=0, round=0, stream=0)
    stream = np.random.Generator(np.random.Philox(0))
    torch_stream = torch.Generator().manual_seed(0)
    calls = iter(range(2**31))  # the step, so that no draw repeats an earlier one

    def new_numpy_stream() -> np.ndarray:
        philox = np.random.Philox(key=next(calls))
        return np.random.Generator(philox).standard_normal(size, dtype=np.float32)

    def new_torch_stream() -> torch.Tensor:
        torch_stream.manual_seed(next(calls))
        return torch.randn(size, generator=torch_stream)

    return {
        OURS: lambda: direction(key, next(calls), 0, 0, size),
        "numpy Philox float64": lambda: stream.standard_normal(size),
        "numpy Philox float32": lambda: stream.standard_normal(size, dtype=np.float32),
        "torch.randn": lambda: torch.randn(size),
        "numpy Philox float32, new stream": new_numpy_stream,
        "torch.randn, new stream": new_torch_stream,
    }
