"""How tests/golden/messages.json was made: a change of that file is a change of the protocol.

The exact bytes of a plan and of two uploads, and w (its SHA-256) after each of three rounds of the
server alone, driven by uploads of fixed numbers. No model is run, and every number is a multiple of
1/1024: what follows from them is element-wise and IEEE 754 fixes it, whatever the processor.

Run: python tools/make_golden_messages.py tests/golden/messages.json
"""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hofl.algorithm import reconstruct, server_round
from hofl.core.directions import DirectionKey
from hofl.core.layout import SURROGATE, Layout
from hofl.core.optim import SGD, AdamW
from hofl.core.packing import pack
from hofl.core.privacy import Privacy
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.rules import LocalRule, Part
from hofl.server.aggregate import aggregation_of
from hofl.server.checks import UploadLimits, check_upload, plan_as_answered
from hofl.server.state import Contribution, NothingKept, ServerState

SMALL = Layout(("a", "b"), ((2, 3), (2,)), (0, 1), 2)
WIDE = Layout(  # lengths around those of vector registers, and a parameter of the surrogate's own
    ("head", "a", "b", "a", "b", "a"),
    ((3, 7), (8, 33), (1,), (129,), (16, 16), (31,)),
    (SURROGATE, 0, 0, 1, 2, 3),
    4,
)
BOUNDARIES, RAISED = (0, 1, 2, 3), (0, 1, 2, 4)
"""Of the four clients of every round, as planned and as answered: the last raises its own."""
SGD_RULE = LocalRule(optimizer=SGD(lr=0.05, weight_decay=0.01), local_steps=3, q=2)
ADAMW_RULE = LocalRule(optimizer=AdamW(lr=0.01), local_steps=3, q=3, proximal=0.125)
RECOMPUTE = replace(SGD_RULE, bottom=Part("recompute"), q=0, uplink_bits=4)
RUNS = {
    "sgd mean": ([SGD_RULE] * 4, "mean"),
    "sgd by-precision": ([SGD_RULE] * 4, "by-precision"),
    "adamw mean": ([ADAMW_RULE] * 4, "mean"),
    "adamw by-precision": ([ADAMW_RULE] * 4, "by-precision"),
    "mixed exact-first": ([SGD_RULE, RECOMPUTE, ADAMW_RULE, RECOMPUTE], "exact-first"),
}


def numbers(count: int, kind: int) -> Tensor:
    """Multiples of 1/1024 in (-1, 1), float32 [count]; another ``kind`` gives others."""
    return ((torch.arange(count) * 7919 + kind * 104729) % 2003 - 1001).float() / 1024


def plan() -> RoundPlan:
    """A plan that uses every field."""
    return RoundPlan(
        run="golden",
        round=7,
        client=3,
        boundary=1,
        key=DirectionKey(2**64 - 1, 2**63, 2**32 - 1),
        seed=2**63 - 1,
        layout=SMALL.digest,
        rule=replace(ADAMW_RULE, directions=Part.of({"name": "gaussian", "shared": True})),
        w=numbers(SMALL.size, 1),
        vectors={"scale": numbers(SMALL.size, 2), "basis": numbers(5, 3)},
        verify=True,
        privacy=Privacy(noise=0.5, scalar_clip=1.0, difference_clip=0.25),
    )


def upload(asked: RoundPlan, layout: Layout, kind: int) -> Upload:
    """An answer of fixed numbers: scalars up to 1, a difference up to 1/64."""
    shape = asked.scalars_shape(layout)
    difference = numbers(layout.size - asked.dense_start(layout), kind + 1) / 64
    return Upload(
        run=asked.run,
        round=asked.round,
        client=asked.client,
        boundary=asked.boundary,
        layout=asked.layout,
        plan=asked.digest(),
        scalars=numbers(shape[0] * shape[1], kind).view(shape),
        difference=pack(difference, asked.rule.uplink_bits, asked.rounding()),
        metrics=ClientMetrics(1.25, 40, checks=1, signal=0.5, noise=0.001, peak_bytes=2**40),
        bottom_hash="ab" * 32,
    )


def three_rounds(rules: list[LocalRule], aggregation: str) -> list[str]:
    """SHA-256 of w after each round, with plans and uploads as they come over the wire."""
    state, hashes = ServerState(numbers(WIDE.size, 5), 0), []
    for t in range(3):
        contributions = [contribution(state, i, rule) for i, rule in enumerate(rules)]
        total = aggregation_of(Part(aggregation), WIDE)
        state = server_round(state, contributions, total, NothingKept())
        assert state.round == t + 1
        hashes.append(hashlib.sha256(state.w.numpy().astype("<f4").tobytes()).hexdigest())
    return hashes


def contribution(state: ServerState, client: int, rule: LocalRule) -> Contribution:
    """What the server makes of a client's answer."""
    sent = RoundPlan(
        run="golden",
        round=state.round,
        client=client,
        boundary=BOUNDARIES[client],
        key=DirectionKey(11, state.round, client),
        seed=11,
        layout=WIDE.digest,
        rule=rule,
        w=state.w,
    )
    received = RoundPlan.from_bytes(sent.to_bytes())
    raised = replace(received, boundary=RAISED[client])
    answer = upload(raised, WIDE, kind=100 * state.round + 10 * client)
    answer = Upload.from_bytes(answer.to_bytes())
    answered = plan_as_answered(sent, answer, WIDE)
    check_upload(answer, answered, WIDE, UploadLimits())
    delta = reconstruct(answered, answer, WIDE)
    return Contribution(answered, answer, delta, share=0.25, clients=4, examples=1 + client)


def golden() -> dict[str, Any]:
    """What the file holds."""
    asked = plan()
    packed = replace(asked, rule=replace(asked.rule, uplink_bits=4))
    return {
        "plan": lines(asked.to_bytes()),
        "plan digest": asked.digest(),
        "upload": lines(upload(asked, SMALL, 20).to_bytes()),
        "upload in 4 bits": lines(upload(packed, SMALL, 20).to_bytes()),
        "rounds": {name: three_rounds(*run) for name, run in RUNS.items()},
    }


def lines(data: bytes) -> list[str]:
    """Bytes as hexadecimal text, 40 to a line."""
    return [data[start : start + 40].hex() for start in range(0, len(data), 40)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="where to write")
    file: Path = parser.parse_args().file
    file.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")
