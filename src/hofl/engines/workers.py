"""Clients of a cohort in parallel: several processes, each with its device and mapped weights.

Each client is computed by one process, and answers are taken in cohort order, so the result has the
same bits for any number of workers (at equal threads per worker).
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from hofl.catchup import Held
from hofl.core.errors import HoflError
from hofl.core.process import end_with
from hofl.engines.base import Dispatch, Failure, attempt
from hofl.engines.client import LocalClient

MakeClient = Callable[[int], LocalClient]
"""Rank of a worker -> its client. Worker processes import it by name, so it must be picklable."""

_client: LocalClient | None = None  # one per worker process, set by _start


class WorkerPool:
    """A pool of processes that answer plans.

    Args:
        make_client: called once in each process to load its model and data.
        workers: number of processes.
        held: what the clients hold, for methods with catch-up; any process may serve any client.
    """

    def __init__(self, make_client: MakeClient, workers: int, held: Held | None = None) -> None:
        self.held = held
        context = multiprocessing.get_context("spawn")  # forking a process with threads deadlocks
        self._workers = workers
        self._pool = ProcessPoolExecutor(
            max_workers=workers,
            mp_context=context,
            initializer=_start,
            initargs=(make_client, context.Value("i", 0), os.getpid()),
        )

    def join(self) -> None:
        """Return None: the whole fleet is always present."""

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Yield answers in cohort order; submit only as many plans as keep every worker busy."""
        waiting: deque[Future[bytes | Failure]] = deque()
        try:
            for dispatch in dispatches:
                message = dispatch.message
                if self.held is not None:
                    message = self.held.received(dispatch.plan.client, message).to_bytes()
                waiting.append(self._pool.submit(_answer, message))
                if len(waiting) > 2 * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise HoflError(
                "a worker process died: for lack of memory (use fewer engine.workers), or in a "
                "script without `if __name__ == '__main__':`. Resume with hofl run --resume."
            ) from None

    def traffic(self) -> dict[int, dict[str, float]]:
        """Return nothing: nothing leaves the machine."""
        return {}

    def close(self) -> None:
        """Kill the processes at once: nothing they are doing is needed."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _start(make_client: MakeClient, counter: Any, parent: int) -> None:
    """Set up one worker process with its own client."""
    global _client
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with(parent)  # nobody would read the answers
    with counter.get_lock():
        rank = counter.value
        counter.value += 1
    _client = make_client(rank)


def _answer(message: bytes) -> bytes | Failure:
    assert _client is not None
    return attempt(partial(_client.answer, message))
