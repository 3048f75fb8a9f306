"""The answers of one round as a network delivers them: in any order, twice, or from strangers."""

from collections.abc import Iterator, Mapping, Sequence

from hofl.errors import UploadRefused
from hofl.layout import Layout
from hofl.messages import RoundPlan
from hofl.server.checks import check_sender, check_size


class Arrivals:
    """Keeps the first answer that each client's own device delivers.

    What is refused changes nothing: a stranger cannot use up a client's one answer. What is kept is
    no longer than its plan allows, so a round's answers have a bound before any of them is read.

    Args:
        plans: what was asked, in cohort order.
        devices: identity of the device behind each client.
        layout: the shared coordinates.
    """

    def __init__(
        self, plans: Sequence[RoundPlan], devices: Mapping[int, str], layout: Layout
    ) -> None:
        self._plans = {plan.client: plan for plan in plans}
        self._devices = devices
        self._layout = layout
        self._answers: dict[int, bytes] = {}

    def deliver(self, client: int, sender: str, answer: bytes) -> None:
        """Keep an answer.

        Raises:
            UploadRefused: nobody asked this client, another device sends it, it is the second one,
                or it is too long.
        """
        plan = self._plans.get(client)
        if plan is None:
            raise UploadRefused(f"client {client} was not asked in this round")
        check_sender(sender, plan, self._devices)
        if client in self._answers:
            raise UploadRefused(f"client {client} has already answered in this round")
        check_size(answer, plan, self._layout)
        self._answers[client] = answer

    @property
    def missing(self) -> list[int]:
        """Clients that have not answered, in cohort order."""
        return [client for client in self._plans if client not in self._answers]

    def __iter__(self) -> Iterator[bytes | None]:
        """One answer per plan, in cohort order; None where there is none."""
        return (self._answers.get(client) for client in self._plans)
