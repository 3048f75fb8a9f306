"""Checks on arrival: one flaw at a time, each refused with its own reason."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hofl.algorithm import reconstruct
from hofl.core.directions import DirectionKey
from hofl.core.errors import UploadRefused
from hofl.core.layout import Layout
from hofl.core.optim import SGD
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.rules import LocalRule
from hofl.server.checks import UploadLimits, check_upload, plan_as_answered

LAYOUT = Layout(
    names=("a", "b", "a", "b"),
    shapes=((2, 2), (3,), (5,), (1, 4)),
    blocks=(0, 0, 1, 2),
    num_blocks=3,
)  # 7 + 5 + 4 parameters
PLAN = RoundPlan(
    run="1",
    round=1,
    client=1,
    boundary=1,
    key=DirectionKey(4, 1, 1),
    seed=4,
    layout=LAYOUT.digest,
    rule=LocalRule(optimizer=SGD(lr=0.1), local_steps=2, q=3),
    w=torch.zeros(16),
)
UPLOAD = Upload(
    run="1",
    round=1,
    client=1,
    boundary=1,
    layout=LAYOUT.digest,
    plan=PLAN.digest(),
    scalars=torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.25, 1.5]]),
    difference=torch.tensor([3.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    metrics=ClientMetrics(loss=0.7, examples=8),
)
NO_LIMITS = UploadLimits()


def with_value(name: str, value: float) -> torch.Tensor:
    tensor = getattr(UPLOAD, name).clone()
    tensor.view(-1)[-1] = value
    return tensor


def test_upload_that_answers_its_plan_passes():
    check_upload(UPLOAD, PLAN, LAYOUT, NO_LIMITS)
    check_upload(Upload.from_bytes(UPLOAD.to_bytes()), PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize(("raised", "taken"), [(2, 2), (3, 3), (1, 1), (0, 1), (4, 1), (-1, 1)])
def test_a_boundary_may_be_raised_up_to_the_last_block_and_never_lowered(raised: int, taken: int):
    upload = replace(UPLOAD, boundary=raised)
    assert plan_as_answered(PLAN, upload, LAYOUT) == replace(PLAN, boundary=taken)


@pytest.mark.parametrize("raised", [True, 2.0, "2", None])
def test_a_boundary_of_another_type_is_not_taken(raised: object):
    assert plan_as_answered(PLAN, replace(UPLOAD, boundary=raised), LAYOUT) is PLAN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", "2"),
        ("run", ""),
        ("run", None),
        ("round", 0),
        ("round", 2),
        ("client", 2),
        ("client", -1),
        ("boundary", 0),
        ("boundary", 2),
        ("layout", "0" * 16),
        ("layout", LAYOUT.digest[:-1]),
        # Equal to the right value in Python, but not of its type.
        *((name, value) for name in ("round", "client", "boundary") for value in (True, 1.0, "1")),
        ("run", 1),
    ],
)
def test_upload_for_another_plan_is_refused(name: str, value: object):
    upload = replace(UPLOAD, **{name: value})
    with pytest.raises(UploadRefused, match=f"^{name} is .*, expected ") as caught:
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)
    assert repr(value) in str(caught.value)
    with pytest.raises(UploadRefused, match=f"^{name} is "):
        check_upload(Upload.from_bytes(upload.to_bytes()), PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("scalars", shape) for shape in [(2, 2), (1, 3), (3, 2), (6,), (2, 3, 1), (2, 0), (0, 3), ()]]
    + [("difference", shape) for shape in [(8,), (10,), (16,), (9, 1), (1, 9), (3, 3), (0,), ()]],
)
def test_wrong_shape_is_refused(name: str, shape: tuple[int, ...]):
    upload = replace(UPLOAD, **{name: torch.zeros(shape)})
    with pytest.raises(UploadRefused, match=f"^{name} has shape .*, expected"):
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize("name", ["scalars", "difference"])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool],
    ids=str,
)
def test_wrong_dtype_is_refused(name: str, dtype: torch.dtype):
    upload = replace(UPLOAD, **{name: getattr(UPLOAD, name).to(dtype)})
    with pytest.raises(UploadRefused, match=f"^{name} has type {dtype}, not float32"):
        check_upload(Upload.from_bytes(upload.to_bytes()), PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize("name", ["scalars", "difference"])
def test_what_is_not_a_tensor_is_refused(name: str):
    upload = replace(UPLOAD, **{name: getattr(UPLOAD, name).tolist()})
    with pytest.raises(UploadRefused, match=f"^{name} has type .*list"):
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize("name", ["scalars", "difference"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_not_finite_is_refused(name: str, value: float):
    upload = replace(UPLOAD, **{name: with_value(name, value)})
    with pytest.raises(UploadRefused, match=f"^{name} holds values that are not finite"):
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize("name", ["loss", "examples", "signal", "noise", "peak_bytes"])
@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, None, "0.7", True, [0.7]),
        pytest.param(10**400, id="10**400"),
    ],
)
def test_metric_that_is_no_finite_number_is_refused(name: str, value: object):
    upload = replace(UPLOAD, metrics=replace(UPLOAD.metrics, **{name: value}))
    with pytest.raises(UploadRefused, match=f"^{name} is .*, (not a|outside)"):
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)
    with pytest.raises(UploadRefused, match=f"^{name} is .*, (not a|outside)"):
        check_upload(Upload.from_bytes(upload.to_bytes()), PLAN, LAYOUT, NO_LIMITS)


@pytest.mark.parametrize("value", [None, 0, ["ab"]])
def test_hash_that_is_no_text_is_refused(value: object):
    upload = replace(UPLOAD, bottom_hash=value)
    with pytest.raises(UploadRefused, match="hash"):
        check_upload(Upload.from_bytes(upload.to_bytes()), PLAN, LAYOUT, NO_LIMITS)


def test_norm_limit_is_on_the_euclidean_norm():
    check_upload(UPLOAD, PLAN, LAYOUT, UploadLimits(max_norm=5.0))  # 3, -4: the norm is 5
    with pytest.raises(UploadRefused, match=r"norm of the difference is 5, limit 4.99"):
        check_upload(UPLOAD, PLAN, LAYOUT, UploadLimits(max_norm=4.99))


def test_norm_of_large_values_does_not_overflow():
    upload = replace(UPLOAD, difference=UPLOAD.difference * 1e30)  # the square is no float32
    check_upload(upload, PLAN, LAYOUT, UploadLimits(max_norm=5.01e30))
    with pytest.raises(UploadRefused, match=r"is 5e\+30, limit 4.9e\+30"):
        check_upload(upload, PLAN, LAYOUT, UploadLimits(max_norm=4.9e30))


def test_scalar_limit_is_on_the_absolute_value():
    check_upload(UPLOAD, PLAN, LAYOUT, UploadLimits(max_scalar=2.0))  # the largest is -2
    with pytest.raises(UploadRefused, match=r"largest scalar is 2, limit 1.9"):
        check_upload(UPLOAD, PLAN, LAYOUT, UploadLimits(max_scalar=1.9))


@pytest.mark.parametrize(
    ("bottom", "boundary", "scalars", "top"),
    [
        ("zeroth-order", 0, (2, 0), 16),
        ("zeroth-order", 1, (2, 3), 9),
        ("zeroth-order", 3, (2, 3), 0),
        ("frozen", 2, (2, 0), 4),
        ("recompute", 2, (2, 0), 16),
    ],
)
def test_sizes_follow_from_the_bottom_rule_and_the_boundary(bottom, boundary, scalars, top):
    plan = replace(PLAN, boundary=boundary, rule=replace(PLAN.rule, bottom=bottom))
    upload = replace(
        UPLOAD,
        boundary=boundary,
        plan=plan.digest(),
        scalars=torch.zeros(scalars),
        difference=torch.zeros(top),
    )
    strict = UploadLimits(max_norm=1e-9, max_scalar=1e-9)
    check_upload(upload, plan, LAYOUT, strict)
    with pytest.raises(UploadRefused, match=r"^difference has shape"):
        check_upload(replace(upload, difference=torch.zeros(top + 1)), plan, LAYOUT, strict)


def test_upload_that_passes_is_rebuilt_to_finite_numbers():
    upload = replace(UPLOAD, scalars=torch.full((2, 3), 3e38))
    try:
        check_upload(upload, PLAN, LAYOUT, NO_LIMITS)
        with np.errstate(all="ignore"):
            delta = reconstruct(PLAN, upload, LAYOUT)
    except UploadRefused:
        return
    assert torch.isfinite(delta).all()
