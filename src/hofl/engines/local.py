"""Clients one after another in this process: one backbone in memory for all of them."""

from collections.abc import Iterable, Iterator
from functools import partial

from hofl.catchup import Held
from hofl.engines.base import Dispatch, Failure, attempt
from hofl.engines.client import LocalClient


class InProcess:
    """The simplest engine.

    Args:
        client: computes the answers.
        held: what the clients hold, for methods with catch-up.
    """

    def __init__(self, client: LocalClient, held: Held | None = None) -> None:
        self._client = client
        self.held = held

    def join(self) -> None:
        """Return None: the whole fleet is always present."""

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Compute each answer when it is asked for."""
        for dispatch in dispatches:
            yield attempt(partial(self._answer, dispatch))

    def _answer(self, dispatch: Dispatch) -> bytes:
        plan = dispatch.plan
        if self.held is not None:
            plan = self.held.received(plan.client, dispatch.message)
        return self._client.upload(plan).to_bytes()

    def traffic(self) -> dict[int, dict[str, float]]:
        """Return nothing: nothing leaves the machine."""
        return {}
