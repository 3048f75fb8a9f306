"""Answers as a network delivers them: one per client, from its own device, of a possible size."""

from dataclasses import replace

import pytest
import torch

from hofl.errors import UploadRefused
from hofl.layout import Layout
from hofl.messages import HEADER_BYTES, LocalRule, RoundPlan
from hofl.optim import SGD
from hofl.server.arrivals import Arrivals
from hofl.server.checks import check_sender, check_size

LAYOUT = Layout(names=("a", "a"), shapes=((10,), (20,)), blocks=(0, 1), num_blocks=2)
PLAN = RoundPlan(
    run="r",
    round=1,
    client=3,
    boundary=1,
    seed=4,
    layout=LAYOUT.digest,
    rule=LocalRule(optimizer=SGD(lr=0.1), local_steps=2, q=3),
    w=torch.zeros(30),
)
PLANS = [PLAN, replace(PLAN, client=7, boundary=0), replace(PLAN, client=5)]
DEVICES = {3: "key-3", 5: "key-5", 7: "key-7", 9: "key-9"}


def arrivals() -> Arrivals:
    return Arrivals(PLANS, DEVICES, LAYOUT)


def test_answers_come_out_in_cohort_order_whatever_order_they_came_in() -> None:
    found = arrivals()
    assert found.missing == [3, 7, 5]
    found.deliver(5, "key-5", b"five")
    found.deliver(3, "key-3", b"three")
    assert found.missing == [7]
    assert list(found) == [b"three", None, b"five"]


@pytest.mark.parametrize(
    ("client", "sender", "answer", "reason"),
    [
        (3, "key-3", b"again", "client 3 has already answered"),
        (3, "key-3", b"three", "client 3 has already answered"),
        (9, "key-9", b"nine", "client 9 was not asked"),
        (-1, "key-3", b"", "client -1 was not asked"),
        (5, "key-7", b"five", "delivered by device 'key-7', not by client 5's"),
        (5, "stranger", b"five", "delivered by device 'stranger'"),
        (5, "", b"five", "delivered by device ''"),
        (3, "key-5", b"three", "delivered by device 'key-5', not by client 3's"),
        (5, "key-5", bytes(10**6), "bytes, and this plan is answered in at most"),
    ],
)
def test_what_is_refused_changes_nothing(
    client: int, sender: str, answer: bytes, reason: str
) -> None:
    found = arrivals()
    found.deliver(3, "key-3", b"three")
    with pytest.raises(UploadRefused, match=reason):
        found.deliver(client, sender, answer)
    assert list(found) == [b"three", None, None]
    found.deliver(5, "key-5", b"five")  # nobody has used up client 5's one answer
    assert list(found) == [b"three", None, b"five"]


def test_a_client_without_a_known_device_cannot_be_answered_for() -> None:
    for sender in ("", "key-3", "None"):
        with pytest.raises(UploadRefused):
            check_sender(sender, PLAN, {})
    check_sender("key-3", PLAN, DEVICES)


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        (PLAN, 6 + 20),
        (replace(PLAN, boundary=0), 6 + 30),
        (replace(PLAN, boundary=2), 6),
        (replace(PLAN, rule=replace(PLAN.rule, bottom="recompute", q=0)), 30),
    ],
)
def test_the_size_limit_follows_from_the_plan(plan: RoundPlan, numbers: int) -> None:
    most = 4 * numbers + HEADER_BYTES
    check_size(bytes(most), plan, LAYOUT)
    with pytest.raises(UploadRefused, match=f"{most + 1} bytes, .* at most {most}"):
        check_size(bytes(most + 1), plan, LAYOUT)
