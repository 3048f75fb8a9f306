"""The section ``fleet`` of a configuration: devices, what they can do, and what was planned."""

from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr

from hofl.experiment.changes import Section as _Section


class ChangeConfig(_Section):
    """A change of a client's memory budget from a round on. The first round is 1."""

    round: int = Field(ge=1)
    client: int = Field(ge=0)
    budget: str


class DeviceConfig(_Section):
    """What the devices of a tier can do, and what they will spend on a round.

    ``memory`` as in ``fleet.budgets``. ``backward = false`` is a device that only does inference.
    Weights are streamed only where ``disk`` has room for them; ``read_speed`` is that disk's, such
    as 500MiB/s. ``seconds`` and ``uplink`` are the most that a round may take; the first needs
    ``gflops``, the device's speed.
    """

    memory: str
    backward: bool = True
    disk: str | None = None
    read_speed: str | None = None
    gflops: float | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)
    uplink: str | None = None


class PlannedConfig(_Section):
    """The planner's choice for a budget or a device; ``rule`` is what it changes in the method."""

    budget: str
    boundary: int = Field(ge=0)
    rule: dict[str, str | int] = Field(default_factory=dict)
    micro_batch: int = Field(default=0, ge=0)
    micro_tokens: int = Field(default=0, ge=0)
    checkpoint: int = Field(default=0, ge=0)
    stream_bottom: bool = False


class FleetConfig(_Section):
    """The devices: N clients, K of them per round, and their order boundaries.

    ``boundaries`` lists the tiers, dealt evenly to the clients by the seed, or one boundary per
    client: a number of blocks, or a share of them such as 0.5, which holds for any model. Empty
    means the paper's three tiers at a quarter, half and three quarters of the model.
    ``seed`` draws what belongs to the fleet rather than to training: each client's examples and
    boundary, and the order of ties. Without it the run's seed does.

    ``budgets`` lists the devices' memory instead (2GiB, 800MiB, or free for what this machine has
    left), by tier or by client, and ``devices`` lists everything that they can do. The planner then
    finds what each device runs: ``best`` is the most parameters trained exactly, ``paper`` the
    largest first-order segment of the method's own step, by memory alone. Unset: ``best``, or
    ``paper`` for methods that cut all devices at one boundary.
    ``memory_trace`` is a CSV file of later changes of budgets. ``changes`` and ``planned`` record
    the finished memory plan in the run folder.
    """

    clients: int = Field(default=30, ge=1)
    cohort: int = Field(default=6, ge=1)
    boundaries: Annotated[tuple[StrictInt | StrictFloat, ...], Field(strict=False)] = ()
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    budgets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    devices: Annotated[tuple[DeviceConfig, ...], Field(strict=False)] = ()
    strategy: Literal["paper", "best"] | None = None
    memory_trace: str | None = None
    changes: Annotated[tuple[ChangeConfig, ...], Field(strict=False)] = ()
    planned: Annotated[tuple[PlannedConfig, ...], Field(strict=False)] = ()
