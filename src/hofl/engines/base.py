"""The engine's interface: carry plans to clients and bring their answers back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from safetensors import SafetensorError

from hofl.core.errors import HoflError, reason_of
from hofl.variants import Changes

if TYPE_CHECKING:  # reading a finished run must not load torch
    from hofl.messages import RoundPlan


@dataclass(frozen=True)
class Dispatch:
    """A plan on its way to its client.

    Args:
        plan: the plan, for engines that run it in this process or need its client.
        message: the same plan as bytes, serialised once for counting and sending; to a client that
            holds an earlier w perhaps as a catch-up.
    """

    plan: "RoundPlan"
    message: bytes = field(repr=False)


@dataclass(frozen=True)
class Failure:
    """The reason why a client gave no answer."""

    reason: str


def attempt(answer: Callable[[], bytes]) -> bytes | Failure:
    """Return a client's answer, or its failure: a device's error must not end the run.

    Programming errors are not caught: they would look like a bad device.
    """
    try:
        return answer()
    except (HoflError, RuntimeError, MemoryError, OSError, SafetensorError) as error:
        return Failure(reason_of(error))


@dataclass(frozen=True)
class DeviceOffer:
    """What a device that is present can do.

    Args:
        boundary: the smallest order boundary that its memory allows.
        examples: n_i, how many training examples it holds; 1 from a private device.
        rule: what its own rule changes in the run's (``hofl.variants``).
    """

    boundary: int
    examples: int = 0
    rule: Changes = field(default_factory=dict)


class RoundLost(Exception):
    """The engine lost its connection: the round is discarded and retried."""

    asked: Sequence[int] = ()
    """Clients that may have answered before the loss."""


class Engine(Protocol):
    """Transport of plans to clients and of their answers back.

    One whose clients hold w between rounds has an attribute ``held`` (``hofl.catchup``).
    """

    def join(self) -> Mapping[int, DeviceOffer] | None:
        """Return the devices that are present, by client; None means the whole simulated fleet."""
        ...

    def gather(self, dispatches: Iterable[Dispatch]) -> Iterator[bytes | Failure]:
        """Yield answers in the order of the plans, not of arrival.

        ``dispatches`` is lazy: an engine holds only the plans it is working on. A client
        that does not answer in time is a failure.

        Raises:
            RoundLost: no client is at fault; the caller retries the round.
        """
        ...

    def traffic(self) -> dict[int, dict[str, float]]:
        """Return the last round's bytes and seconds per client; empty without a network."""
        ...
