"""Resident workers behind their sockets, in threads of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hofl.deploy.device import WorkerSettings
from hofl.deploy.link import LinkLost, listen, receive, send
from hofl.deploy.worker import Worker


@contextmanager
def serving(path: Path, worker: Any) -> Iterator[None]:
    """A worker behind its socket, in a thread."""
    server = listen(path)
    server.settimeout(0.1)
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                link, _ = server.accept()
            except TimeoutError:
                continue
            link.settimeout(60)
            with link:
                try:
                    send(link, *worker.answer(*receive(link)))
                except LinkLost:
                    continue

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        server.close()


def device(
    folder: Path, number: int, boundary: int, min_noise: float = 0.0, key: Path | None = None
) -> Worker:
    return Worker(
        WorkerSettings(
            name=f"device-{number}",
            run_config=str(folder / f"run-{number}.toml"),
            shard=number,
            boundary=boundary,
            device="cpu",
            threads=1,
            min_noise=min_noise,
            key="" if key is None else str(key),
        )
    )
