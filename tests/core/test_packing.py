"""Differences in 8 to 1 bits: unbiased, bounded, small on the wire, and refused when malformed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hofl.algorithm import client_update, reconstruct
from hofl.core.directions import DirectionKey
from hofl.core.errors import HoflError, UploadRefused
from hofl.core.optim import SGD
from hofl.core.packing import CHUNK, Packed, pack, unpack
from hofl.local.step import LocalParts
from hofl.messages import ClientMetrics, RoundPlan, Upload
from hofl.methods import METHODS
from hofl.models.split import SplitModel
from hofl.rules import LocalRule
from hofl.server.checks import UploadLimits, check_upload
from support.models import batch, tiny

NO_LIMITS = UploadLimits()
TOP = {8: 127, 4: 7, 2: 1, 1: 1}
"""The largest integer of each grid."""
STEP = {8: 1, 4: 1, 2: 1, 1: 2}
"""The distance of its integers."""


class Fixed:
    """A generator whose uniform draws are all the same."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.u)


def sent(values: torch.Tensor, bits: int, u: float) -> torch.Tensor:
    return unpack(pack(values, bits, Fixed(u)), bits, len(values))


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_the_mean_over_all_draws_is_the_value_itself(bits: int) -> None:
    """With scale 1/512 and values in steps of 1/512^2, the midpoints of u give the exact mean."""
    top, steps = TOP[bits], 512
    grid = torch.arange(-top * steps, top * steps + 1, 97 * STEP[bits]) / steps**2
    largest = torch.tensor([top / steps])  # the last of every chunk fixes its scale
    vector = torch.cat([torch.cat([chunk, largest]) for chunk in grid.split(CHUNK - 1)])
    total = torch.zeros(len(vector), dtype=torch.float64)  # sums of multiples of 1/512: exact
    for k in range(steps):
        total += sent(vector, bits, (k + 0.5) / steps)
    assert torch.equal(total / steps, vector.double())


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_mean_of_many_roundings_converges_to_the_values(bits: int) -> None:
    """Each rounding's variance is at most s^2 / 4, so the mean lies within 5 s / (2 sqrt n)."""
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(size=300).astype(np.float32))
    repeats = 4000
    total = torch.zeros(300, dtype=torch.float64)
    for _ in range(repeats):
        total += unpack(pack(values, bits, rng), bits, 300).double()
    scale = torch.cat([c.abs().max().expand(len(c)) for c in values.split(CHUNK)])
    scale = scale * STEP[bits] / TOP[bits]
    error = (total / repeats - values).abs()
    assert (error <= 5 * scale / (2 * repeats**0.5) + 1e-6).all()
    nearest = sent(values, bits, 0.5)  # the same test would catch rounding to nearest
    assert ((nearest - values).abs() > 5 * scale / (2 * repeats**0.5)).any()


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000])
def test_every_value_comes_back_within_one_step_of_its_chunks_grid(bits: int, size: int) -> None:
    rng = np.random.default_rng(1)
    spread = 10.0 ** rng.uniform(-6, 6, size)  # chunks of very different sizes
    values = torch.from_numpy((rng.normal(size=size) * spread).astype(np.float32))
    found = unpack(pack(values, bits, rng), bits, size)
    assert found.shape == values.shape
    for x, y in zip(values.split(CHUNK), found.split(CHUNK), strict=True) if size else ():
        step = x.abs().max() * STEP[bits] / TOP[bits]
        assert ((x - y).abs() <= step * 1.000001).all()
        assert torch.equal(y[x.abs().argmax()].sign(), x[x.abs().argmax()].sign())


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-38, 3.4e38, -1.0])
@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_range_stay_inside_it(bits: int, value: float, u: float) -> None:
    values = torch.tensor([value, 0.0, value / 3, -value])
    found = sent(values, bits, u)
    assert torch.isfinite(found).all()
    step = abs(value) * STEP[bits] / TOP[bits]
    assert (found.double() - values.double()).abs().max() <= step * 1.00001 + 127 * 1.5e-45


def plan_and_upload(bits: int, client: int = 1) -> tuple[SplitModel, RoundPlan, Upload]:
    model = tiny("llama")
    rule = replace(METHODS["recompute"].local, local_steps=2, uplink_bits=bits)
    plan = RoundPlan(
        run="p",
        round=2,
        client=client,
        boundary=2,
        key=DirectionKey(11, 2, client),
        seed=11,
        layout=model.layout.digest,
        rule=rule,
        w=model.w.clone(),
    )
    received = RoundPlan.from_bytes(plan.to_bytes())
    upload = client_update(model, received, [[batch(e)] for e in range(2)], LocalParts.of(rule, 2))
    return model, plan, upload


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_a_recomputed_update_arrives_close_to_the_clients_and_repeats_itself(bits: int) -> None:
    model, plan, upload = plan_and_upload(bits)
    exact = model.w - plan.w
    check_upload(Upload.from_bytes(upload.to_bytes()), plan, model.layout, NO_LIMITS)
    delta = reconstruct(plan, Upload.from_bytes(upload.to_bytes()), model.layout)
    for x, y in zip(exact.split(CHUNK), delta.split(CHUNK), strict=True):
        assert (x - y).abs().max() <= x.abs().max() * STEP[bits] / TOP[bits] * 1.000001
    assert not torch.equal(delta, exact)
    again, other = plan_and_upload(bits)[2], plan_and_upload(bits, client=2)[2]
    assert again.to_bytes() == upload.to_bytes()
    assert not torch.equal(other.difference.codes, upload.difference.codes)


@pytest.mark.parametrize(("bits", "per_value"), [(32, 4), (8, 1), (4, 0.5), (2, 0.25), (1, 0.125)])
@pytest.mark.parametrize("size", [1000, 250_001])
def test_uplink_costs_its_bits_and_a_scale_per_chunk(
    bits: int, per_value: float, size: int
) -> None:
    upload = Upload(
        run="a" * 64,
        round=1,
        client=1,
        boundary=1,
        layout="0" * 16,
        plan="0" * 64,
        scalars=torch.zeros(5, 0),
        difference=pack(torch.randn(size), bits, np.random.default_rng(0)),
        metrics=ClientMetrics(loss=0.7, examples=8),
    )
    payload = per_value * size + (0 if bits == 32 else 4 * size / CHUNK)
    assert payload <= len(upload.to_bytes()) <= payload + 2048


def broken(upload: Upload, **changes: torch.Tensor) -> Upload:
    return replace(upload, difference=replace(upload.difference, **changes))


def test_the_places_of_codes_in_a_byte_are_those_of_the_documentation() -> None:
    """Every width, against bytes written by hand; a byte that is not full ends in zeros' codes."""
    values = torch.tensor([1.0, -1.0, 1.0])
    for bits, expected in ((8, [255, 1, 255]), (4, [0x1F, 0x8F]), (2, [0b10110111]), (1, [0xFD])):
        packed = pack(values, bits, Fixed(0.5))
        assert isinstance(packed, Packed)
        assert packed.codes.tolist() == expected
        torch.testing.assert_close(unpack(packed, bits, 3), values)


@pytest.mark.parametrize("bits", [8, 4, 2])  # in 1 bit every code is a value
def test_malformed_packed_differences_are_refused(bits: int) -> None:
    model, plan, upload = plan_and_upload(bits)
    codes, scales = upload.difference.codes, upload.difference.scales
    negative, endless = scales.clone(), scales.clone()
    negative[0], endless[0] = -1.0, torch.inf
    outside = codes.clone()
    outside[3] = 0
    for bad, message in (
        (broken(upload, codes=codes[:-1]), "codes has shape"),
        (broken(upload, codes=codes.to(torch.int16)), "codes has type torch.int16, not uint8"),
        (broken(upload, scales=scales[:-1]), "scales has shape"),
        (broken(upload, scales=scales.double()), "scales has type"),
        (broken(upload, scales=endless), "scales holds values that are not finite"),
        (broken(upload, scales=negative), "outside the grid"),
        (broken(upload, codes=outside), "outside the grid"),
        (replace(upload, difference=torch.zeros(model.layout.size)), f"not sent in {bits} bits"),
    ):
        with pytest.raises(UploadRefused, match=message):
            check_upload(Upload.from_bytes(bad.to_bytes()), plan, model.layout, NO_LIMITS)
    wide = replace(plan, rule=replace(plan.rule, uplink_bits=32))
    with pytest.raises(UploadRefused, match="not sent in 32 bits"):
        check_upload(upload, wide, model.layout, NO_LIMITS)
    norm = reconstruct(plan, upload, model.layout).norm().item()
    check_upload(upload, plan, model.layout, UploadLimits(max_norm=norm * 1.001))
    with pytest.raises(UploadRefused, match="norm of the difference"):
        check_upload(upload, plan, model.layout, UploadLimits(max_norm=norm * 0.999))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_difference_that_is_not_finite_is_refused_packed_too(value: float) -> None:
    model, plan, upload = plan_and_upload(8)
    values = torch.zeros(model.layout.size)
    values[5] = value
    packed = pack(values, 8, np.random.default_rng(0))
    with pytest.raises(UploadRefused, match="scales holds values that are not finite"):
        check_upload(replace(upload, difference=packed), plan, model.layout, NO_LIMITS)


def test_a_message_with_codes_and_no_scales_is_refused() -> None:
    _, _, upload = plan_and_upload(8)
    assert isinstance(upload.difference, Packed)
    data = upload.to_bytes().replace(b'"scales"', b'"scalez"')
    with pytest.raises(UploadRefused, match="scales"):
        Upload.from_bytes(data)


@pytest.mark.parametrize("bits", [0, 3, 16, -8])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(HoflError, match="uplink_bits must be one of 32, 8, 4, 2, 1"):
        LocalRule(optimizer=SGD(lr=0.1), uplink_bits=bits).check()
