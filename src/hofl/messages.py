"""What crosses the network: a round's plan down, an upload up.

Names and shapes do not travel: both sides have the layout and compare its digest. The wire format
is that of ``hofl.core.wire``.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hofl.core.directions import DirectionKey, Directions
from hofl.core.errors import HoflError, PlanRefused, UploadRefused, printable
from hofl.core.layout import Layout
from hofl.core.packing import Packed
from hofl.core.privacy import Privacy
from hofl.core.randomness import Purpose, generator
from hofl.core.wire import HEADER_BYTES, check_types, pack_message, unpack_message
from hofl.rules import DIRECTIONS, LocalRule
from hofl.variants import forward_only

RANGES = {
    "loss": (float, -1e9, 1e9),
    "examples": (int, 0, 10**12),
    "checks": (int, 0, 10**6),
    "signal": (float, 0.0, 1e30),
    "noise": (float, 0.0, 1e30),
    "peak_bytes": (int, 0, 2**60),
}
"""Type, least and largest value of every metric: generous, but sums over a run stay finite."""


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """Down: the global adapter, and one client's work in one round.

    Args:
        run: name of the run, so that uploads of another run are refused.
        round: t.
        client: i.
        boundary: b_i.
        key: of this participation's directions.
        seed: of this participation's own draws: minibatches, and rounding of the difference.
        layout: digest of the shared coordinates.
        rule: the local rule.
        w: w_t, flat float32 [d].
        vectors: what else the server keeps and shares, by name, such as a scale per coordinate.
        verify: the client adds a hash of its final bottom segment.
        privacy: how the client protects what it sends; None is not at all.
        start: hash of the adapter w_0 that the run started from; empty for a fresh one, and then
            not sent.
    """

    run: str
    round: int
    client: int
    boundary: int
    key: DirectionKey
    seed: int
    layout: str
    rule: LocalRule
    w: Tensor = field(repr=False)
    vectors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    verify: bool = False
    privacy: Privacy | None = None
    start: str = ""

    def __post_init__(self) -> None:
        if "w" in self.vectors:
            raise HoflError("a vector beside w cannot be called 'w': give it another name.")

    def directions(self, layout: Layout) -> Directions:
        """Make the object that regenerates this participation's directions, on either side."""
        arrays = {name: vector.cpu().numpy() for name, vector in self.vectors.items()}
        part = self.rule.directions
        made: Directions = part.made_by(DIRECTIONS[part.name].make, self.key, layout, arrays)
        return made

    def scalars_shape(self, layout: Layout) -> tuple[int, int]:
        """Return (E, q), or (E, 0) when the bottom sends no scalars."""
        replayed = self.rule.traits.sends_scalars and self.boundary > 0
        return self.rule.local_steps, self.rule.q if replayed and layout.cut(self.boundary) else 0

    def without_backward(self, layout: Layout) -> "RoundPlan | None":
        """Return what a device does instead that turns out unable to run a block backward.

        None where the plan runs none, has no directions to probe along, or is private: the scalars
        would be more than the device has accounted for.
        """
        if not self.rule.traits.needs_backward or self.rule.q < 1 or self.privacy is not None:
            return None
        return replace(self, boundary=layout.num_blocks, rule=forward_only(self.rule))

    def dense_start(self, layout: Layout) -> int:
        """Return where the upload's difference ``w[dense_start:]`` starts: at the top, or at 0."""
        return 0 if self.rule.traits.sends_difference else layout.cut(self.boundary)

    def max_upload_bytes(self, layout: Layout) -> int:
        """Return the largest size of an answer to this plan: its vectors in full, and a header."""
        numbers = self.rule.local_steps * self.rule.q + layout.size - self.dense_start(layout)
        return 4 * numbers + HEADER_BYTES

    def digest(self) -> str:
        """Return SHA-256 of the whole plan, its vectors included; an upload repeats it."""
        digest = hashlib.sha256(json.dumps(self._header()).encode())
        for name, vector in sorted(self._tensors().items()):
            digest.update(f"{name} {vector.dtype} {tuple(vector.shape)}".encode())
            digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def rounding(self) -> np.random.Generator:
        """Return the client's stream for rounding its difference; the server does not need it."""
        return generator(self.seed, Purpose.UPLINK, self.round, self.client)

    def to_bytes(self) -> bytes:
        """Serialise."""
        return pack_message("plan", self._header(), self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {**self.vectors, "w": self.w}

    def _header(self) -> dict[str, Any]:
        header = {k: v for k, v in vars(self).items() if k not in ("w", "vectors")}
        private = None if self.privacy is None else asdict(self.privacy)
        if not self.start:
            del header["start"]
        return {**header, "key": [*self.key], "rule": self.rule.spec(), "privacy": private}

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse bytes that should come from the server.

        Raises:
            PlanRefused: they are not a plan.
        """
        header, tensors = unpack_message("plan", data, PlanRefused)
        try:
            rule, private = LocalRule.from_spec(header.pop("rule")), header.pop("privacy")
            rule.check()
            key = header.pop("key")
            plan = cls(
                **header,
                key=DirectionKey(*key),
                rule=rule,
                w=tensors.pop("w"),
                vectors=tensors,
                privacy=None if private is None else Privacy(**private),
            )
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise PlanRefused(f"malformed plan: {printable(error)}") from None
        _check_plan(plan)
        return plan


@dataclass(frozen=True)
class ClientMetrics:
    """What a client reports beside its update.

    Args:
        loss: mean training loss over the E steps; None where it is withheld.
        examples: number of training examples seen.
        checks: how often the scalars' error was measured.
        signal: squared scalar at mu, summed over the checks.
        noise: squared difference of the scalars at mu and 2 mu.
        peak_bytes: measured peak of live tensor bytes, 0 when not measured.
    """

    loss: float | None
    examples: int
    checks: int = 0
    signal: float = 0.0
    noise: float = 0.0
    peak_bytes: int = 0


WITHHELD = ClientMetrics(None, 0)
"""What a private client reports: every figure would reveal something about its data."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Up: E*q scalars and the difference of the first-order segment.

    Args:
        run, round, client, boundary, layout: copied from the plan; checked on arrival.
        plan: the plan's digest.
        scalars: s, float32 [E, q].
        difference: w_E - w_0 of the densely sent segment, float32 [d_FO], or the same packed.
        metrics: loss and measurements.
        bottom_hash: SHA-256 of the final bottom segment when the plan asked for it.
    """

    run: str
    round: int
    client: int
    boundary: int
    layout: str
    plan: str
    scalars: Tensor = field(repr=False)
    difference: Tensor | Packed = field(repr=False)
    metrics: ClientMetrics
    bottom_hash: str = ""

    def to_bytes(self) -> bytes:
        """Serialise; communication figures are the length of these bytes."""
        header = {
            k: v for k, v in vars(self).items() if k not in ("scalars", "difference", "metrics")
        }
        header["metrics"] = asdict(self.metrics)
        sent = self.difference
        vectors = vars(sent) if isinstance(sent, Packed) else {"difference": sent}
        return pack_message("upload", header, {"scalars": self.scalars, **vectors})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse bytes from an untrusted sender; refuse anything unexpected."""
        try:
            header, tensors = unpack_message("upload", data, UploadRefused)
            metrics = ClientMetrics(**header.pop("metrics"))
            scalars = tensors.pop("scalars")
            difference = (
                Packed(tensors.pop("codes"), tensors.pop("scales"))
                if "codes" in tensors
                else tensors.pop("difference")
            )
            upload = cls(**header, scalars=scalars, difference=difference, metrics=metrics)
        except (TypeError, KeyError) as error:
            raise UploadRefused(f"malformed upload: {printable(error)}") from None
        if tensors:
            raise UploadRefused(f"malformed upload: unknown vector {printable(min(tensors))}")
        _check_upload(upload)
        return upload


def _check_plan(plan: RoundPlan) -> None:
    """Refuse a plan with fields or vectors that no server of this version sends."""
    check_types(plan, str, "run layout start", PlanRefused)
    check_types(plan, int, "round client boundary seed", PlanRefused)
    check_types(plan, bool, "verify", PlanRefused)
    for name, bits in {"round": 63, "client": 32, "boundary": 32, "seed": 64}.items():
        if not 0 <= getattr(plan, name) < 2**bits:
            raise PlanRefused(f"{name} is {getattr(plan, name)!r:.40}, not in [0, 2**{bits})")
    for name, vector in {**plan.vectors, "w": plan.w}.items():
        if vector.dtype != torch.float32 or vector.dim() != 1 or not vector.isfinite().all():
            shown = f"{str(vector.dtype).removeprefix('torch.')} {tuple(vector.shape)}"
            raise PlanRefused(f"{printable(name)} is {shown}, not a finite float32 vector")


def _check_upload(upload: Upload) -> None:
    check_types(upload, str, "run layout plan bottom_hash", UploadRefused)
    check_types(upload, int, "round client boundary", UploadRefused)
    for name in vars(upload.metrics):
        check_metric(name, getattr(upload.metrics, name), withheld=name == "loss")


def check_metric(name: str, value: Any, withheld: bool) -> None:
    """Refuse a metric that is not a number in its range; ``withheld`` allows None."""
    kind, least, most = RANGES[name]
    if value is None and withheld:
        return
    # An integer is fine where a float is meant, a truth value nowhere. Comparing also refuses NaN.
    if type(value) not in (int, kind):
        word = "an integer" if kind is int else "a number"
        raise UploadRefused(f"{name} is {printable(repr(value)):.40}, not {word}")
    if not least <= value <= most:
        shown = f"{least:g} to {most:g}"
        raise UploadRefused(f"{name} is {printable(repr(value)):.40}, outside {shown}")


def vector_hash(vector: Tensor) -> str:
    """Return SHA-256 of a vector's bytes: a final bottom segment, or the start of a run."""
    return hashlib.sha256(vector.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
