"""Clients of a cohort in parallel: several processes, each with its device and mapped weights.

Every client is computed whole by one process, and answers are taken in cohort order, so the result
has the same bits whatever the number of workers (at equal threads per worker).
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from hofl.client import LocalClient
from hofl.engines.rounds import Failure, attempt
from hofl.errors import HoflError
from hofl.experiment.build import build
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.models.loading import resolve_device
from hofl.process import tune_allocator, use_threads

_client: LocalClient | None = None  # one per worker process, set by _start


class WorkerPool:
    """A pool of processes that answer plans."""

    def __init__(self, config: ExperimentConfig) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads deadlocks
        self._workers = config.engine.workers
        self._pool = ProcessPoolExecutor(
            max_workers=config.engine.workers,
            mp_context=context,
            initializer=_start,
            initargs=(config.model_dump(mode="json"), context.Value("i", 0), os.getpid()),
        )

    def join(self) -> None:
        """Everyone is always there."""

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Answers in cohort order; no more plans are out than keep every worker busy."""
        waiting: deque[Future[bytes | Failure]] = deque()
        try:
            for plan in plans:
                waiting.append(self._pool.submit(_answer, plan))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise HoflError(
                "a worker process died: for lack of memory (use fewer engine.workers), or in a "
                "script without `if __name__ == '__main__':`. Go on with hofl run --resume."
            ) from None

    def traffic(self) -> dict[str, dict[str, float]]:
        """Nothing leaves the machine."""
        return {}

    def close(self) -> None:
        """End the processes now; nothing they are doing is needed."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _start(values: dict[str, Any], counter: Any, parent: int) -> None:
    """Set up one worker: its device, its threads, its copy of the client."""
    global _client
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with counter.get_lock():
        rank = counter.value
        counter.value += 1
    config = parse_config(values)
    tune_allocator()
    use_threads(config.engine.threads, config.engine.workers)
    device = resolve_device(config.engine.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank % torch.cuda.device_count())
    _client = build(config, device=str(device)).client


def _answer(plan: bytes) -> bytes | Failure:
    assert _client is not None
    return attempt(_client, plan)


def _end_with(parent: int) -> None:
    """A worker whose parent was killed has nobody to answer to."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
