"""Seeded Gaussian directions u ~ N(0, I), Eq. (5), equal bit for bit on every machine.

A direction is defined by integers and a table alone: Philox words, keyed by (the participation's
key, local step e, direction j, parameter index), are read as little-endian 16-bit integers, and
each integer picks one of 65,536 standard-normal quantiles from ``normal_table.npy``. No logarithm,
cosine or vector width is involved, so client and server agree on any hardware.

The combination (1/q) sum_j s_j u_j uses one rounding per operation (no fused multiply-add), which
IEEE 754 fixes too: given the same scalars, both sides get the same gradient estimate.
"""

import hashlib
import io
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.layout import Coordinate, Layout
from hofl.core.randomness import Purpose, philox_words

HESSIAN = "hessian"
"""Name of the diagonal H [d] that the server keeps for :class:`Curved` directions."""
TOTALS = "totals"
"""Name of the accumulated scalars A [pool] that the server keeps for :class:`Candidates`."""
LARGEST_POOL = 2**20
"""Candidates: their totals are kept, sent and summed over, 4 bytes each."""
TABLE_SHA256 = "b5d193788f8dbaca5f2b783ecc573e6cb85521b702952d959068ad27fa8dd491"
_UINT16 = np.dtype("<u2")


@dataclass(frozen=True)
class DirectionKey:
    """The key of one participation's directions: 64, 64 and 32 bits of Philox's key and counter.

    The server derives it from the run's secret (``hofl.core.secret``); tests may count.
    """

    seed: int
    round: int
    stream: int

    def __post_init__(self) -> None:
        for name, value, bits in zip(("seed", "round", "stream"), self, (64, 64, 32), strict=True):
            if type(value) is not int or not 0 <= value < 2**bits:
                raise HoflError(f"a key's {name} must lie in [0, 2**{bits}), got {value!r:.40}.")

    def __iter__(self) -> Iterator[int]:
        return iter((self.seed, self.round, self.stream))


@cache
def normal_table() -> np.ndarray:
    """Return the 65,536 quantiles at (k + 1/2) / 65536, scaled to unit variance, float32."""
    data = files("hofl.core").joinpath("normal_table.npy").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != TABLE_SHA256:
        raise RuntimeError(f"normal_table.npy is damaged: SHA-256 {digest}. Reinstall hofl.")
    table = np.load(io.BytesIO(data))
    table.flags.writeable = False
    return table


def direction(key: DirectionKey, step: int, j: int, index: int, size: int) -> np.ndarray:
    """Return direction j of local step e for one parameter, float32 [size]."""
    words = _words(key, step, j, index, (size + 3) // 4)
    return normal_table().take(words.view(_UINT16)[:size], mode="clip")


class Directions:
    """The directions of one participation, for client and server alike.

    Another rule overrides :meth:`direction`, and :meth:`combine` where it has a faster way.
    ``factor`` c makes the estimate (c/q) sum_j s_j u_j unbiased: c E[u u^T] = I.

    Args:
        key: names the participation.
        layout: the shared coordinates.
        vectors: what the server keeps for the rule and sends with the plan, float32 [d] each.
    """

    def __init__(
        self, key: DirectionKey, layout: Layout, vectors: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.key, self.layout, self.vectors = key, layout, vectors or {}
        self.factor = 1.0

    def direction(self, step: int, j: int, coordinate: Coordinate) -> np.ndarray:
        """Return u_j of local step e for one parameter, float32 [size], in new memory."""
        return direction(self.key, step, j, coordinate.index, coordinate.size)

    def combine(
        self, scalars: Sequence[float] | np.ndarray, step: int, boundary: int, out: np.ndarray
    ) -> np.ndarray:
        """Write the gradient estimate (c/q) sum_j s_j u_j, Eq. (6), to ``out`` [d_ZO]; return it.

        The order of the sum over j is protocol: client and server both call this method.
        """
        weights = np.asarray(scalars, dtype=np.float32)
        share = np.float32(self.factor) / np.float32(len(weights))
        with np.errstate(over="ignore", invalid="ignore"):  # huge scalars: the caller refuses them
            for coordinate in self.layout.bottom(boundary):
                self._combine_parameter(weights, share, step, coordinate, out)
        return out

    def _combine_parameter(
        self,
        weights: np.ndarray,
        share: np.float32,
        step: int,
        coordinate: Coordinate,
        out: np.ndarray,
    ) -> None:
        target = out[coordinate.start : coordinate.stop]
        for j, scalar in enumerate(weights):
            values = self.direction(step, j, coordinate)
            if j == 0:
                np.multiply(values, scalar, out=target)
            else:
                np.multiply(values, scalar, out=values)
                np.add(target, values, out=target)
        np.multiply(target, share, out=target)


class Gaussian(Directions):
    """u ~ N(0, I), Eq. (5); with ``shared`` the server gives the whole cohort one key (DeComFL)."""

    def __init__(
        self,
        key: DirectionKey,
        layout: Layout,
        vectors: Mapping[str, np.ndarray] | None = None,
        *,
        shared: bool = False,
    ) -> None:
        if not isinstance(shared, bool):
            raise HoflError(f"shared must be true or false, got {shared!r}.")
        super().__init__(key, layout, vectors)


class Sphere(Directions):
    """u uniform on the unit sphere of R^d, with the factor d: FedZO's directions.

    A normal vector over its length. The length is that of all d coordinates at every boundary, so
    that u does not depend on it; squares within a parameter are summed exactly (``fsum``), so no
    order or vector width matters.
    """

    def __init__(
        self,
        key: DirectionKey,
        layout: Layout,
        vectors: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(key, layout, vectors)
        self.factor = float(layout.size)
        self._lengths: dict[tuple[int, int], np.float32] = {}

    def direction(self, step: int, j: int, coordinate: Coordinate) -> np.ndarray:
        """Return u_j of local step e for one parameter, float32 [size], in new memory."""
        if (step, j) not in self._lengths:
            self._lengths = {} if j == 0 else self._lengths  # one step's lengths are enough
            squares = 0.0
            for c in self.layout.coordinates:
                normal = super().direction(step, j, c).astype(np.float64)
                squares += math.fsum(normal * normal)
            self._lengths[step, j] = np.float32(math.sqrt(squares))
        return super().direction(step, j, coordinate) / self._lengths[step, j]


class Curved(Gaussian):
    """u = H^(-1/2) * normal with the diagonal H that the server keeps: HiSo's directions.

    A step along them moves w by H^-1 times the gradient on average. Square root and division are
    rounded once, so both sides get the same bits; H = 1 gives those of :class:`Gaussian`.
    """

    def __init__(
        self,
        key: DirectionKey,
        layout: Layout,
        vectors: Mapping[str, np.ndarray] | None = None,
        *,
        nu: float = 0.05,
        eps: float = 1e-8,
        shared: bool = False,
    ) -> None:
        """Take nu and eps, too: the server's side needs them (``hofl.server.curvature``)."""
        super().__init__(key, layout, vectors, shared=shared)
        given = self.vectors.get(HESSIAN)
        if given is None or given.shape != (layout.size,) or not (given > 0).all():
            raise HoflError(f"curved directions need H > 0 [{layout.size}]: the plan has none.")

    def direction(self, step: int, j: int, coordinate: Coordinate) -> np.ndarray:
        """Return u_j of local step e for one parameter, float32 [size], in new memory."""
        values = super().direction(step, j, coordinate)
        return values / np.sqrt(self.vectors[HESSIAN][coordinate.start : coordinate.stop])


def checked_pool(pool: int) -> int:
    """Return the number of candidates; refuse one that makes no sense."""
    if type(pool) is not int or not 1 <= pool <= LARGEST_POOL:
        raise HoflError(f"pool must lie in 1..{LARGEST_POOL} candidates, got {pool!r:.40}.")
    return pool


class Candidates(Gaussian):
    """u drawn from a finite pool of normal directions that the whole run shares: FedKSeed's.

    The participation's key picks the candidate of every (e, j), so no index travels. Candidates
    have a key of their own, the same in every round, which every device may know.
    """

    def __init__(
        self,
        key: DirectionKey,
        layout: Layout,
        vectors: Mapping[str, np.ndarray] | None = None,
        *,
        pool: int = 4096,
        seed: int = 0,
        shared: bool = False,
    ) -> None:
        super().__init__(key, layout, vectors, shared=shared)
        self._candidates, self.pool = DirectionKey(seed, 0, 0), checked_pool(pool)
        given = self.vectors.get(TOTALS)
        if given is not None and given.shape != (pool,):
            raise HoflError(f"the plan has totals {given.shape}, its pool {pool} candidates.")

    def chosen(self, step: int, j: int) -> int:
        """Return the number of the candidate that is u_j of local step e, uniform in 0..pool-1."""
        word = _words(self.key, step, j, 0, 1, Purpose.CANDIDATE)[0]
        return int(word) % self.pool  # the bias, pool / 2**64, is beyond all counting

    def candidate(self, number: int, coordinate: Coordinate) -> np.ndarray:
        """Return a candidate for one parameter, float32 [size], in new memory."""
        return direction(self._candidates, 0, number, coordinate.index, coordinate.size)

    def direction(self, step: int, j: int, coordinate: Coordinate) -> np.ndarray:
        """Return u_j of local step e for one parameter, float32 [size], in new memory."""
        return self.candidate(self.chosen(step, j), coordinate)


class _Streams(threading.local):
    """One Philox per thread, re-keyed per draw: making a new one costs more than the draw."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.state = self.bits.state  # its output buffer is empty, and remains empty in this copy
        self.key = self.state["state"]["key"]
        self.counter = self.state["state"]["counter"]


_streams = _Streams()


def _words(
    key: DirectionKey,
    step: int,
    j: int,
    index: int,
    count: int,
    purpose: Purpose = Purpose.DIRECTION,
) -> np.ndarray:
    """Return raw little-endian 64-bit words of one direction of one parameter."""
    words, counter = philox_words(key.seed, purpose, key.round, key.stream, index, step, j)
    streams = _streams
    streams.key[:] = words
    streams.counter[:] = counter
    streams.bits.state = streams.state
    return streams.bits.random_raw(count).astype("<u8", copy=False)
