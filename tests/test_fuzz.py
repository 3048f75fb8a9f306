"""Fuzzed plans and uploads: a message of the stated types, or the one stated error; nothing else.

5,000 of them here; ``make fuzz`` tries HOFL_FUZZ = 100,000.
"""

import json
import math
import os
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from hofl.algorithm import reconstruct
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError, PlanRefused, UploadRefused
from hofl.core.layout import Layout
from hofl.core.optim import SGD, AdamW
from hofl.core.packing import pack
from hofl.core.privacy import Privacy
from hofl.local.step import LocalParts
from hofl.messages import ClientMetrics, RoundPlan, Upload, vector_hash
from hofl.rules import LocalRule, Part
from hofl.server.checks import UploadLimits, check_size, check_upload, plan_as_answered

COUNT = int(os.environ.get("HOFL_FUZZ", "5000")) // 4
LAYOUT = Layout(("a", "b", "a", "b"), ((3, 5), (7,), (3, 5), (7,)), (0, 0, 1, 1), 2)
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 4, 8, 31, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, 1e309, -1e309, math.nan, "", "0", "1e5", "w", "gaussian", "sgd"),
    *("\x00", "\u2028", "é" * 50, "a" * 500, [], [0], [1, 2, 3], [[]], [None], {}, {"name": "sgd"}),
    *({"name": "gaussian", "shared": 3}, {"name": "adamw", "lr": 1}, {"name": []}, {"": 0}),
]
PLAN = RoundPlan(
    run="fuzzed",
    round=7,
    client=3,
    boundary=1,
    key=DirectionKey(2**63, 5, 9),
    seed=11,
    layout=LAYOUT.digest,
    rule=LocalRule(optimizer=AdamW(lr=0.01), local_steps=2, q=2, proximal=0.1),
    w=torch.linspace(-1, 1, LAYOUT.size),
    vectors={"scale": torch.ones(LAYOUT.size)},
    verify=True,
    privacy=Privacy(noise=0.5, scalar_clip=1.0, difference_clip=0.25),
)
OPEN = replace(PLAN, vectors={}, privacy=None, verify=False)


def answer(plan: RoundPlan) -> Upload:
    difference = torch.linspace(-0.1, 0.1, LAYOUT.size - plan.dense_start(LAYOUT))
    return Upload(
        **{name: getattr(plan, name) for name in ("run", "round", "client", "boundary", "layout")},
        plan=plan.digest(),
        scalars=torch.full(plan.scalars_shape(LAYOUT), 0.5),
        difference=pack(difference, plan.rule.uplink_bits, plan.rounding()),
        metrics=ClientMetrics(1.25, 40, checks=1, signal=0.5, noise=0.001, peak_bytes=2**30),
        bottom_hash=vector_hash(torch.zeros(1)),
    )


PLANS = [
    PLAN,
    OPEN,
    replace(OPEN, rule=replace(OPEN.rule, optimizer=SGD(lr=0.1), uplink_bits=4)),
    replace(
        OPEN, rule=replace(OPEN.rule, directions=Part.of({"name": "gaussian", "shared": True}))
    ),
]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths to all values inside plain values."""
    if not isinstance(value, dict | list):
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(rng: random.Random, fields: Any) -> Any:
    """Plain values with some of them replaced, removed, renamed or moved."""
    fields = json.loads(json.dumps(fields))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.choice(places(fields)[1:] or [()])
        if not place:
            return deepcopy(rng.choice(ODD))
        parent = fields
        for key in place[:-1]:
            parent = parent[key]
        kind = rng.randrange(6)
        if kind == 0 and isinstance(parent, dict):
            del parent[place[-1]]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(rng.choice(ODD))] = parent.pop(place[-1])
        elif (
            kind == 2 and type(parent[place[-1]]) in (int, float) and abs(parent[place[-1]]) < 9e99
        ):
            parent[place[-1]] *= rng.choice([-1, 1e9, 1e300, 0, 2**40, 1e-300])
        else:
            parent[place[-1]] = deepcopy(rng.choice(ODD))
    return fields


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A message with other fields, other vectors, or other bytes."""
    length = int.from_bytes(data[:8], "little")
    head, vectors = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = rng.randrange(4)
    if kind <= 1:
        fields = changed(rng, json.loads(head["__metadata__"]["hofl"]))
        head["__metadata__"]["hofl"] = json.dumps(fields)
    elif kind == 2:
        if rng.random() < 0.5:
            name = rng.choice([name for name in head if name != "__metadata__"])
            head[name] = changed(rng, head[name])
        else:
            array = bytearray(vectors)
            for _ in range(rng.randint(1, 4)):
                at = 4 * rng.randrange(len(array) // 4)
                array[at : at + 4] = struct.pack(
                    "<f", rng.choice([math.nan, math.inf, -math.inf, 3e38, 1e-45, 0.0, -1e30])
                )
            vectors = bytes(array)
    else:
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 5)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                [rng.randrange(256), *b'{}[]":,019.e']
            )
        cut = rng.choice([len(damaged)] * 3 + [rng.randrange(len(damaged))])
        return bytes(damaged[:cut]) + bytes(rng.choice([0, 0, 0, 1, 9]))
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + vectors


def carried_out(data: bytes) -> bool:
    """What a device does with a plan before it computes; whether it would compute."""
    try:
        plan = RoundPlan.from_bytes(data)
    except PlanRefused as refusal:
        check_reason(refusal)
        return False
    assert type(plan.run) is type(plan.layout) is str
    numbers = (plan.round, plan.client, plan.boundary, plan.seed, *plan.key)
    assert all(type(number) is int and 0 <= number < 2**64 for number in numbers)
    assert type(plan.verify) is bool
    assert all(v.dtype == torch.float32 and v.dim() == 1 for v in (plan.w, *plan.vectors.values()))
    options = {**vars(plan.rule.optimizer), "name": 0}
    assert all(math.isfinite(value) for value in options.values())
    assert RoundPlan.from_bytes(plan.to_bytes()).digest() == plan.digest()
    try:
        plan.directions(LAYOUT)
        plan.rounding()
        LocalParts.of(plan.rule, plan.boundary)
        plan.max_upload_bytes(LAYOUT)
    except HoflError as refusal:
        check_reason(refusal)
        return False
    return True


def check_reason(refusal: HoflError) -> None:
    reason = str(refusal)
    assert len(reason) < 500, reason
    assert reason.isprintable(), reason


def taken(plan: RoundPlan, data: bytes) -> bool:
    """What the server does with an upload; whether it counts."""
    try:
        check_size(data, plan, LAYOUT)
        upload = Upload.from_bytes(data)
        answered = plan_as_answered(plan, upload, LAYOUT)
        check_upload(upload, answered, LAYOUT, UploadLimits())
        delta = reconstruct(answered, upload, LAYOUT)
    except UploadRefused as refusal:
        check_reason(refusal)
        return False
    assert (plan.w + delta).isfinite().all()
    figures = [value for value in vars(upload.metrics).values() if value is not None]
    assert all(type(value) in (int, float) and abs(value) <= 1e30 for value in figures)
    return True


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_fuzzed_messages_end_in_the_stated_errors_alone(number: int) -> None:
    rng, plan = random.Random(number), PLANS[number]
    cases: list[tuple[bytes, Callable[[bytes], bool]]] = [(plan.to_bytes(), carried_out)]
    if not plan.verify:  # else scalars that fit the hash are needed
        cases.append((answer(plan).to_bytes(), lambda data: taken(plan, data)))
    for data, judged in cases:
        assert judged(data), "the message itself is good"
        good = sum(judged(mutated(rng, data)) for _ in range(COUNT // len(cases)))
        assert 0 < good < COUNT // len(cases) // 2


def wire(**changes: Any) -> bytes:
    """The plan with other fields; a dot in a name leads into the rule."""
    data = OPEN.to_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    fields = json.loads(head["__metadata__"]["hofl"])
    for name, value in changes.items():
        place = fields
        *path, last = name.split("__")
        for key in path:
            place = place[key]
        place[last] = value
    head["__metadata__"]["hofl"] = json.dumps(fields)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rule__optimizer__lr": 10**400}, "lr must be a finite number"),
        ({"rule__optimizer__lr": math.nan}, "lr must be a finite number"),
        ({"rule__optimizer__eps": "1"}, "eps must be a finite number"),
        ({"rule__mu": 10**400}, "mu must be a finite number"),
        ({"rule__mu": None}, "mu must be a finite number"),
        ({"rule__proximal": "0"}, "proximal must be a finite number"),
        ({"rule__q": 2.0}, "q must be an integer"),
        ({"rule__q": 2**32}, "q must be an integer up to"),
        ({"rule__local_steps": True}, "local_steps must be an integer"),
        ({"rule__uplink_bits": 8.0}, "uplink_bits must be an integer"),
        ({"rule__bottom": {"name": ["x"]}}, "a part is a name"),
        ({"rule": []}, "malformed plan"),
        ({"run": 7}, "run is 7, not text"),
        ({"layout": None}, "layout is None, not text"),
        ({"round": 1.5}, "round is 1.5, not an integer"),
        ({"round": -1}, "round is -1, not in"),
        ({"client": 2**32}, "client is 4294967296, not in"),
        ({"boundary": True}, "boundary is True, not an integer"),
        ({"seed": 2**64}, "seed is 18446744073709551616, not in"),
        ({"key": [1, 2]}, "malformed plan"),
        ({"key": [1, 2, 2**32]}, "a key's stream must lie in"),
        ({"key": [1.0, 2, 3]}, "a key's seed must lie in"),
        ({"verify": 1}, "verify is 1, not true or false"),
        ({"privacy": {"noise": 10**400, "scalar_clip": 1, "difference_clip": 1}}, "privacy.noise"),
        ({"privacy": {"noise": True, "scalar_clip": 1, "difference_clip": 1}}, "privacy.noise"),
        ({"privacy": 5}, "malformed plan"),
    ],
    ids=str,
)
def test_a_malformed_plan_is_one_stated_error(changes: dict, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        RoundPlan.from_bytes(wire(**changes))


@pytest.mark.parametrize(
    "vectors",
    [
        {"w": torch.zeros(44).double()},
        {"w": torch.zeros(4, 11)},
        {"w": torch.full((44,), torch.nan)},
        {"w": torch.zeros(44), "scale": torch.zeros(44).int()},
    ],
    ids=lambda v: str([str(t.dtype) for t in v.values()]),
)
def test_a_plan_with_other_vectors_is_refused(vectors: dict) -> None:
    w = vectors.pop("w")
    with pytest.raises(PlanRefused, match="not a finite float32 vector"):
        RoundPlan.from_bytes(replace(OPEN, w=w, vectors=vectors).to_bytes())


def test_a_plan_that_no_device_would_read_is_not_sent() -> None:
    directions = Part.of({"name": "gaussian", "shared": "x" * 5000})
    long = replace(OPEN, rule=replace(OPEN.rule, directions=directions))
    with pytest.raises(HoflError, match=r"the header of a plan has .* at most 4096 are allowed"):
        long.to_bytes()


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"signal": 9e299}, r"signal is 9e\+299, outside 0 to 1e\+30"),
        ({"noise": 1e31}, "noise is .* outside"),
        ({"loss": -1e10}, "loss is .* outside"),
        ({"examples": 10**13}, "examples is .* outside"),
        ({"examples": 2.5}, "examples is 2.5, not an integer"),
        ({"peak_bytes": 2**70}, "peak_bytes is .* outside"),
        ({"checks": 10**9}, "checks is .* outside"),
    ],
    ids=str,
)
def test_implausible_metrics_are_refused(metrics: dict, reason: str) -> None:
    good = answer(OPEN)
    with pytest.raises(UploadRefused, match=reason):
        Upload.from_bytes(replace(good, metrics=replace(good.metrics, **metrics)).to_bytes())
