"""Clients one after another in this process: one backbone in memory for all of them."""

from collections.abc import Iterable, Iterator

from hofl.client import LocalClient
from hofl.engines.rounds import Failure
from hofl.errors import HoflError


class InProcess:
    """The simplest engine."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client

    def gather(self, plans: Iterable[bytes]) -> Iterator[bytes | Failure]:
        """Compute each answer when it is asked for."""
        for plan in plans:
            try:
                yield self._client.answer(plan)
            except HoflError as error:
                yield Failure(str(error))

    def close(self) -> None:
        """Nothing was started."""
