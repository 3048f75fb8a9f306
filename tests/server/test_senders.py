"""Answers as a network delivers them: from the right device, and of a possible size."""

from dataclasses import replace

import pytest
import torch

from hofl.core.directions import DirectionKey
from hofl.core.errors import UploadRefused
from hofl.core.layout import Layout
from hofl.core.optim import SGD
from hofl.core.wire import HEADER_BYTES
from hofl.messages import RoundPlan
from hofl.rules import LocalRule
from hofl.server.checks import check_sender, check_size

LAYOUT = Layout(names=("a", "a"), shapes=((10,), (20,)), blocks=(0, 1), num_blocks=2)
PLAN = RoundPlan(
    run="r",
    round=1,
    client=3,
    boundary=1,
    key=DirectionKey(4, 1, 3),
    seed=4,
    layout=LAYOUT.digest,
    rule=LocalRule(optimizer=SGD(lr=0.1), local_steps=2, q=3),
    w=torch.zeros(30),
)
DEVICES = {3: "key-3", 5: "key-5", 7: "key-7", 9: "key-9"}


@pytest.mark.parametrize("sender", ["key-5", "key-7", "stranger", "", "KEY-3", "3"])
def test_an_answer_counts_only_from_the_device_that_was_asked(sender: str) -> None:
    check_sender("key-3", PLAN, DEVICES)
    with pytest.raises(UploadRefused, match=f"delivered by device '{sender}', not by client 3's"):
        check_sender(sender, PLAN, DEVICES)


def test_a_client_without_a_known_device_cannot_be_answered_for() -> None:
    for sender in ("", "key-3", "None"):
        with pytest.raises(UploadRefused):
            check_sender(sender, PLAN, {})


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
