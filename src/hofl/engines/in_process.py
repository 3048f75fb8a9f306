"""Clients one after another in this process: one backbone in memory for all of them."""

from collections.abc import Iterable, Iterator

from hofl.client import LocalClient
from hofl.engines.rounds import Failure, attempt


class InProcess:
    """The simplest engine."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client

    def join(self) -> None:
        """Everyone is always there."""

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Compute each answer when it is asked for."""
        for plan in plans:
            yield attempt(self._client, plan)

    def traffic(self) -> dict[str, dict[str, float]]:
        """Nothing leaves the machine."""
        return {}

    def close(self) -> None:
        """Nothing was started."""
