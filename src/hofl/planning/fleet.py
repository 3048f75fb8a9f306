"""The devices of a fleet, round by round: where each cuts the model, and how it runs its steps."""

from dataclasses import dataclass

from hofl.data.encoding import EncodedSet
from hofl.local.execution import PLAIN, Execution
from hofl.messages import LocalRule
from hofl.planning.workload import Workload

_LOOKED_AT = 512  # examples whose lengths are compared


@dataclass(frozen=True)
class Device:
    """A device's own boundary, and its way to run a step."""

    boundary: int
    execution: Execution = PLAIN


@dataclass(frozen=True)
class FleetPlan:
    """All devices at the start of a run, and what changes later.

    It is a function of the round alone: a resumed run finds the same devices.

    Args:
        start: the N devices.
        changes: (t, i, device): from round t on client i is another device; in order of rounds.
    """

    start: tuple[Device, ...]
    changes: tuple[tuple[int, int, Device], ...] = ()

    def epoch(self, round_number: int) -> int:
        """How many changes have happened by round t; rounds of one epoch have the same devices."""
        return sum(since <= round_number for since, _, _ in self.changes)

    def at(self, round_number: int) -> tuple[Device, ...]:
        """The devices of round t, [N]."""
        devices = list(self.start)
        for _, client, device in self.changes[: self.epoch(round_number)]:
            devices[client] = device
        return tuple(devices)


def heaviest_workload(
    train: EncodedSet, rule: LocalRule, batch_size: int, max_length: int
) -> Workload:
    """The largest step that a training set can ask for: examples of full length.

    Rows and slots are the most that any of some examples takes: the longest text need not be the
    one with the longest answer.
    """
    some = range(0, len(train), max(1, len(train) // _LOOKED_AT))
    found = [train.encoded(index) for index in some]
    slots = max(-(-sum(map(len, one.spans)) // len(one.spans)) for one in found)  # of a row
    among_words = train.collate(found[:1]).goal.candidates is not None
    return Workload(
        rule=rule,
        batch_size=batch_size,
        seq_len=max(max_length, *(one.length for one in found)),
        rows_per_example=max(len(one.spans) for one in found),
        answer_tokens=0 if among_words else slots,
    )
