"""Directions: the exact bits, against golden values and a Philox written here in plain integers."""

import hashlib
import itertools
import json
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from hofl.core.directions import DirectionKey, Gaussian, direction, normal_table
from hofl.core.layout import Layout

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "directions.json").read_text())
WORD = 2**64 - 1
# Names of a direction: (seed, round, stream, step, j, index).
BASE = (42, 7, 3, 1, 2, 5)
LAYOUT = Layout(
    names=("a", "b", "a", "b", "a"),
    shapes=((3, 5), (2,), (7,), (1,), (4, 4)),
    blocks=(0, 0, 1, 1, 3),
    num_blocks=4,
)


def draw(name: tuple[int, ...], size: int) -> np.ndarray:
    return direction(DirectionKey(*name[:3]), *name[3:], size=size)


def philox_block(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 of Salmon et al. (2011) on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [
            (right >> 64) ^ c[1] ^ k[0],
            right & WORD,
            (left >> 64) ^ c[3] ^ k[1],
            left & WORD,
        ]
        k = [(k[0] + 0x9E3779B97F4A7C15) & WORD, (k[1] + 0xBB67AE8584CAA73B) & WORD]
    return c


def oracle(name: tuple[int, ...], size: int) -> list[float]:
    """The protocol in words: purpose 1, block counter from 1, 16 bits at a time, low bits first."""
    seed, round_number, stream, step, j, index = name
    table, values = normal_table(), []
    for block in range(1, 2 + size // 16):
        counter = [block, stream << 32 | index, step << 32 | j, round_number]
        for word in philox_block(counter, [seed, 1]):
            values += [float(table[word >> shift & 0xFFFF]) for shift in (0, 16, 32, 48)]
    return values[:size]


def to_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_the_oracle_gives_the_published_answer_of_philox():
    # kat_vectors of Random123 1.x: "philox4x64 10", zero counter and zero key.
    assert philox_block([0] * 4, [0] * 2) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@pytest.mark.parametrize("entry", GOLDEN["draws"], ids=lambda entry: str(entry["key"]))
def test_draw_has_the_golden_bits(entry: dict):
    expected = bytes.fromhex(entry["float32"])
    assert draw(entry["key"], 10).astype("<f4").tobytes() == expected


def test_long_draw_has_the_golden_hash():
    long = GOLDEN["long"]
    values = draw(long["key"], long["size"])
    assert values.dtype == np.float32
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == long["sha256"]


@pytest.mark.parametrize("name", [BASE, *(tuple(entry["key"]) for entry in GOLDEN["draws"])])
def test_draw_follows_from_philox_in_plain_integers(name: tuple[int, ...]):
    assert draw(name, 333).tolist() == oracle(name, 333)


def test_table_holds_the_normal_quantiles_scaled_to_unit_variance():
    exact = np.array([NormalDist().inv_cdf((k + 0.5) / 65536) for k in range(65536)])
    exact /= np.sqrt(np.mean(exact**2))
    np.testing.assert_allclose(normal_table(), exact, rtol=1.2e-7, atol=1e-12)


def test_table_has_the_moments_of_a_standard_normal():
    table = normal_table().astype(np.float64)
    assert abs(table.mean()) < 1e-9
    assert abs(np.mean(table**2) - 1) < 1e-7
    assert abs(np.mean(table**4) - 3) < 1e-3  # the tail beyond 4.3 sigma is cut
    assert abs(np.mean(table**6) - 15) < 0.04


def test_long_draw_has_the_moments_of_a_standard_normal():
    n = 2_000_000
    values = draw(BASE, n).astype(np.float64)
    # 4.5 standard errors of each mean; Var z^2 = 2 and Var z^4 = 96 for a normal z.
    assert abs(values.mean()) < 4.5 * (1 / n) ** 0.5
    assert abs(np.mean(values**2) - 1) < 4.5 * (2 / n) ** 0.5
    assert abs(np.mean(values**4) - 3) < 4.5 * (96 / n) ** 0.5 + 1e-3
    assert abs(np.mean(values[1:] * values[:-1])) < 4.5 * (1 / n) ** 0.5


def test_every_part_of_the_key_gives_uncorrelated_values():
    n = 200_000
    changed = [tuple(v + (i == part) for i, v in enumerate(BASE)) for part in range(6)]
    draws = np.stack([draw(name, n) for name in (BASE, *changed)]).astype(np.float64)
    off_diagonal = np.corrcoef(draws)[np.triu_indices(7, 1)]
    assert np.abs(off_diagonal).max() < 4.5 / n**0.5


def test_no_two_keys_share_their_values():
    small = set(itertools.product((0, 1), repeat=6))
    large = {(*BASE[:i], 2**32 - 1, *BASE[i + 1 :]) for i in range(6)}
    swapped = set(itertools.permutations(BASE))
    names = small | large | swapped
    assert len({draw(name, 16).tobytes() for name in names}) == len(names) == 64 + 6 + 720


@pytest.mark.parametrize(("part", "bits"), [(0, 64), (1, 64), (2, 32), (3, 32), (4, 32), (5, 32)])
def test_key_out_of_range_is_refused_instead_of_wrapped(part: int, bits: int):
    for value in (-1, 2**bits):
        with pytest.raises(ValueError, match=str(value)):
            draw((*BASE[:part], value, *BASE[part + 1 :]), 4)


@pytest.mark.parametrize("earlier", [1, 5, 17, 31])
def test_draw_does_not_depend_on_earlier_draws(earlier: int):
    expected = oracle(BASE, 21)
    draw((9, 9, 2**32 - 1, 9, 9, 9), earlier)
    draw(BASE, earlier)
    assert draw(BASE, 21).tolist() == expected


def test_draw_does_not_depend_on_threads():
    names = [(1, 2, client, 0, j, 0) for client in range(40) for j in range(5)]
    expected = [draw(name, 41).tobytes() for name in names]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # change threads between almost any two instructions
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                assert list(pool.map(lambda n: draw(n, 41).tobytes(), names)) == expected
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 15, 16, 17, 999])
def test_smaller_draw_is_a_prefix_of_a_larger_one(size: int):
    values = draw(BASE, size)
    assert len(values) == size
    assert values.tobytes() == draw(BASE, 1000)[:size].tobytes()


@pytest.mark.parametrize("boundary", [0, 1, 2, 3, 4])
def test_combine_rounds_once_per_operation(boundary: int):
    # A float32 product is exact in double and a sum rounds the same through double, so this loop
    # rounds to float32 once per operation; the second total is what a fused multiply-add gives.
    scalars = [to_float32(s) for s in (0.3, -1.7e-3, 12.1)]
    third = to_float32(1 / to_float32(3.0))
    expected, fused = [], []
    for index, (shape, block) in enumerate(zip(LAYOUT.shapes, LAYOUT.blocks, strict=True)):
        size = int(np.prod(shape)) if block < boundary else 0
        columns = [oracle((8, 9, 10, 4, j, index), size) for j in range(3)]
        for values in zip(*columns, strict=True):
            total = total_fused = to_float32(values[0] * scalars[0])
            for value, scalar in zip(values[1:], scalars[1:], strict=True):
                total = to_float32(total + to_float32(value * scalar))
                total_fused = to_float32(total_fused + value * scalar)
            expected.append(to_float32(total * third))
            fused.append(to_float32(total_fused * third))
    out = np.full(len(expected), np.nan, dtype=np.float32)
    Gaussian(DirectionKey(8, 9, 10), LAYOUT).combine(scalars, 4, boundary, out)
    assert out.tolist() == expected
    assert fused != expected or boundary == 0, "the example cannot tell a fused multiply-add"
