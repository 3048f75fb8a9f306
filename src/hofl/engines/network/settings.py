"""What a device knows of itself. Needs no model library: the supervisor stays small."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from hofl.planning.sizes import AUTO


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings of a device's resident worker.

    Args:
        name: how the device calls itself.
        socket: where the worker listens.
        offer: file that keeps the run's configuration, for a worker that is restarted.
        data: its own training files, or "".
        shard: instead of them, a part of the run's task; -1 for none.
        memory: budget such as ``4GiB``, or ``auto`` for what is free.
        boundary: its order boundary, or -1 to find it from the memory.
        model: model to use in place of the one that the run names, or "".
        device: where to compute.
        threads: CPU threads, 0 for all.
        key: private key that signs its answers, or "" where nobody has keys.
        min_noise: plans with a smaller noise multiplier (``privacy.noise``) are refused.
    """

    name: str
    socket: str = ""
    offer: str = ""
    data: str = ""
    shard: int = -1
    memory: str = AUTO
    boundary: int = -1
    model: str = ""
    device: str = "auto"
    threads: int = 0
    key: str = ""
    min_noise: float = 0.0

    def to_json(self) -> str:
        """For the worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From the command line."""
        return cls(**json.loads(text))
