"""The section ``fleet`` of a configuration: devices, what they can do, and what was planned."""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from hofl.experiment.section import Section as _Section
from hofl.memory.strategies import STRATEGIES


def _known_strategy(name: str) -> str:
    if name not in STRATEGIES:
        names = {"names": ", ".join(STRATEGIES)}
        raise PydanticCustomError("strategy", "should be one of {names}", names)
    return name


class ChangeConfig(_Section):
    """A change of a client's memory budget."""

    round: int = Field(ge=1)
    """From this round on; the first is 1."""
    client: int = Field(ge=0)
    """Number of the client, from 0."""
    budget: str
    """The new budget."""


class DeviceConfig(_Section):
    """What the devices of a tier can do, and what they will spend on a round."""

    memory: str
    """As in ``fleet.budgets``."""
    backward: bool = True
    """``false`` is a device that only does inference."""
    disk: str | None = None
    """Room on disk; weights are streamed only where it has room for them."""
    read_speed: str | None = None
    """Of that disk, such as 500MiB/s."""
    gflops: float | None = Field(default=None, gt=0)
    """Speed of the device; ``seconds`` needs it."""
    seconds: float | None = Field(default=None, gt=0)
    """Most time for a round."""
    uplink: str | None = None
    """Most bytes to send in a round."""


class PlannedConfig(_Section):
    """The planner's choice for a budget or a device."""

    budget: str
    """For which it was chosen."""
    boundary: int = Field(ge=0)
    """Order boundary b."""
    rule: dict[str, str | int] = Field(default_factory=dict)
    """What it changes in the method's local rule."""
    micro_batch: int = Field(default=0, ge=0)
    """As in ``engine``."""
    micro_tokens: int = Field(default=0, ge=0)
    """As in ``engine``."""
    checkpoint: int = Field(default=0, ge=0)
    """As in ``engine``."""
    stream_bottom: bool = False
    """As in ``engine``."""


class FleetConfig(_Section):
    """The devices: N clients, K of them per round, and their order boundaries or budgets.

    Where budgets or devices are given, the planner finds what each device runs.
    """

    clients: int = Field(default=30, ge=1)
    """N, devices in the fleet."""
    cohort: int = Field(default=6, ge=1)
    """K, clients of a round."""
    boundaries: Annotated[tuple[StrictInt | StrictFloat, ...], Field(strict=False)] = ()
    """Tiers, dealt evenly to the clients by the seed, or one boundary per client: a number of
    blocks, or a share of them such as 0.5, which holds for any model. Empty means the paper's three
    tiers at a quarter, half and three quarters of the model."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Chance that a simulated client does not answer."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Draws what belongs to the fleet rather than to training: each client's examples and boundary,
    and the order of ties. Unset: the run's seed."""
    budgets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    """The devices' memory in place of boundaries, by tier or by client: 2GiB, 800MiB, or free for
    what this machine has left."""
    devices: Annotated[tuple[DeviceConfig, ...], Field(strict=False)] = ()
    """The same with everything that they can do."""
    strategy: Annotated[str, AfterValidator(_known_strategy)] | None = None
    """``best`` trains the most parameters exactly, ``paper`` the largest first-order segment of the
    method's own step, by memory alone. Unset: ``best``, or ``paper`` for methods that cut all
    devices at one boundary."""
    memory_trace: str | None = None
    """CSV file of later changes of budgets."""
    changes: Annotated[tuple[ChangeConfig, ...], Field(strict=False)] = ()
    """Those changes, as a run folder records them."""
    planned: Annotated[tuple[PlannedConfig, ...], Field(strict=False)] = ()
    """The finished memory plan, as a run folder records it."""
