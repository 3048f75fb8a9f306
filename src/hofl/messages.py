"""What crosses the network: a plan down, an upload up. Both know their serialised size.

Wire format: one ``safetensors`` buffer of flat vectors, whose metadata holds the small fields as
JSON. Names and shapes do not travel: both sides have the layout and compare its digest. Reading
never executes anything and never trusts a length.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import safetensors
from safetensors.torch import load, save
from torch import Tensor

from hofl.directions import SHARED_STREAM, DirectionKey
from hofl.errors import UploadRefused
from hofl.layout import Layout
from hofl.optim import Optimizer, optimizer_from, optimizer_spec
from hofl.packing import Packed
from hofl.privacy import Privacy
from hofl.randomness import Purpose, generator

SCHEMA = 1
LARGEST = 1e300
"""Metrics beyond this are refused."""
HEADER_BYTES = 4096
"""The most that a message may spend on anything but its vectors, its length field included."""
# What readers raise on hostile bytes; RuntimeError covers overflowing shapes and deep nesting.
_UNREADABLE = (
    safetensors.SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
)


@dataclass(frozen=True, kw_only=True)
class LocalRule:
    """What a client does in its E local steps. Names refer to the registries in ``hofl.local``.

    Args:
        optimizer: SGD or AdamW, state reset at every participation.
        local_steps: E.
        bottom: how the bottom learns (``zeroth-order``, ``frozen``, ``recompute``).
        surrogate: what the bottom minimises (``linear``, ``end-to-end``, ``none``).
        estimator: ``forward``, ``central`` or ``forward-mode``.
        q: directions per step.
        mu: perturbation radius.
        proximal: FedProx's strength, 0 for none.
        uplink_bits: 32, or 8 or 4 to send the difference stochastically rounded.
    """

    optimizer: Optimizer
    local_steps: int = 5
    bottom: str = "zeroth-order"
    surrogate: str = "linear"
    estimator: str = "forward"
    q: int = 2
    mu: float = 1e-3
    proximal: float = 0.0
    uplink_bits: int = 32


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """Down: the global adapter and what this client is to do with it.

    Args:
        run: name of the run, so that an upload cannot be taken for another run's.
        round: t.
        client: i.
        boundary: b_i.
        seed: the run's seed; with round and stream it names every direction.
        layout: digest of the shared coordinates.
        rule: the local rule.
        w: w_t, flat float32 [d].
        shared_directions: the whole cohort uses the same directions.
        verify: the client adds a hash of its final bottom segment.
        privacy: how the client protects what it sends; None is not at all.
    """

    run: str
    round: int
    client: int
    boundary: int
    seed: int
    layout: str
    rule: LocalRule
    w: Tensor = field(repr=False)
    shared_directions: bool = False
    verify: bool = False
    privacy: Privacy | None = None

    @property
    def key(self) -> DirectionKey:
        """Key of this participation's directions."""
        stream = SHARED_STREAM if self.shared_directions else self.client
        return DirectionKey(self.seed, self.round, stream)

    def scalars_shape(self, layout: Layout) -> tuple[int, int]:
        """(E, q), or (E, 0) when the bottom sends no scalars."""
        replayed = self.rule.bottom == "zeroth-order" and layout.cut(self.boundary) > 0
        return self.rule.local_steps, self.rule.q if replayed else 0

    def dense_start(self, layout: Layout) -> int:
        """The upload's difference covers ``w[dense_start:]``: the top, or all after recompute."""
        return 0 if self.rule.bottom == "recompute" else layout.cut(self.boundary)

    def max_upload_bytes(self, layout: Layout) -> int:
        """No answer to this plan is longer: its vectors in full, and a header."""
        numbers = self.rule.local_steps * self.rule.q + layout.size - self.dense_start(layout)
        return 4 * numbers + HEADER_BYTES

    def digest(self) -> str:
        """SHA-256 of everything the plan says, w_t included: what an upload answers."""
        found = hashlib.sha256(json.dumps(self._header()).encode())
        found.update(self.w.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def rounding(self) -> np.random.Generator:
        """The client's stream for rounding its difference; nobody else needs it."""
        return generator(self.seed, Purpose.UPLINK, self.round, self.client)

    def to_bytes(self) -> bytes:
        """Serialise."""
        return _pack("plan", self._header(), {"w": self.w})

    def _header(self) -> dict[str, Any]:
        header = {k: v for k, v in vars(self).items() if k not in ("w", "rule")}
        rule = {k: v for k, v in vars(self.rule).items() if k != "optimizer"}
        rule["optimizer"] = optimizer_spec(self.rule.optimizer)
        private = None if self.privacy is None else asdict(self.privacy)
        return {**header, "rule": rule, "privacy": private}

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse."""
        header, tensors = _unpack("plan", data)
        rule = header.pop("rule")
        rule["optimizer"] = optimizer_from(rule["optimizer"])
        private = header.pop("privacy")
        return cls(
            **header,
            rule=LocalRule(**rule),
            w=tensors["w"],
            privacy=None if private is None else Privacy(**private),
        )


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
"""All figures tell of the data: a private client reports none."""


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
        """Serialise; ``len`` of this is what the communication figures report."""
        header = {
            k: v for k, v in vars(self).items() if k not in ("scalars", "difference", "metrics")
        }
        header["metrics"] = asdict(self.metrics)
        sent = self.difference
        vectors = vars(sent) if isinstance(sent, Packed) else {"difference": sent}
        return _pack("upload", header, {"scalars": self.scalars, **vectors})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse bytes that may come from anyone; anything unexpected is refused."""
        try:
            header, tensors = _unpack("upload", data)
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
        _check_types(upload)
        return upload


def _check_types(upload: Upload) -> None:
    """JSON can hold anything; what was decoded is what the signature says, or is refused."""
    for kind, word, names in (
        (str, "text", ("run", "layout", "plan", "bottom_hash")),
        (int, "an integer", ("round", "client", "boundary")),
    ):
        for name in names:
            value = getattr(upload, name)
            if type(value) is not kind:  # True is no integer here
                raise UploadRefused(f"{name} is {printable(repr(value))}, not {word}")
    for name, value in vars(upload.metrics).items():
        if name == "loss" and value is None:
            continue
        # Comparing settles NaN, too, and integers too big for a float.
        if type(value) not in (int, float) or not -LARGEST < value < LARGEST:
            raise UploadRefused(f"{name} is {printable(repr(value)):.40}, not a finite number")
        if name != "loss" and value < 0:
            raise UploadRefused(f"{name} is {value!r:.40}, which is negative")


def _pack(kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    text = json.dumps({"kind": kind, "schema": SCHEMA, **header}, separators=(",", ":"))
    return save({k: v.contiguous().cpu() for k, v in tensors.items()}, metadata={"hofl": text})


def _unpack(kind: str, data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    length = int.from_bytes(data[:8], "little")
    if 8 + length > HEADER_BYTES:
        raise UploadRefused(f"not a hofl message: a header of {length} bytes")
    try:
        tensors = load(data)
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["hofl"])
        found = header.pop("kind"), header.pop("schema")
    except _UNREADABLE as error:
        raise UploadRefused(f"not a hofl message: {printable(error)}") from None
    if found != (kind, SCHEMA) or type(found[1]) is not int:
        shown = printable(found)
        raise UploadRefused(f"got message {shown}, expected {(kind, SCHEMA)}: update both sides.")
    return header, {name: tensor.clone() for name, tensor in tensors.items()}


def printable(value: object) -> str:
    r"""Text of something a stranger sent: short, and safe for any log or terminal.

    >>> print(printable("\x1b[2Jno power"))
    \x1b[2Jno power
    """
    return str(value).encode("unicode_escape").decode()[:200]


def bottom_hash(w_bottom: Tensor) -> str:
    """SHA-256 of a bottom segment's bytes."""
    return hashlib.sha256(w_bottom.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
