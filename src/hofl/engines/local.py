"""Clients one after another in this process: one backbone in memory for all of them."""

from collections.abc import Iterable, Iterator
from functools import partial

from hofl.engines.base import Dispatch, Failure, attempt
from hofl.engines.client import LocalClient
from hofl.messages import RoundPlan


class InProcess:
    """The simplest engine."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client

    def join(self) -> None:
        """Return None: the whole fleet is always present."""

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Compute each answer when it is asked for."""
        for dispatch in dispatches:
            yield attempt(partial(self._answer, dispatch.plan))

    def _answer(self, plan: RoundPlan) -> bytes:
        return self._client.upload(plan).to_bytes()

    def traffic(self) -> dict[int, dict[str, float]]:
        """Return nothing: nothing leaves the machine."""
        return {}
