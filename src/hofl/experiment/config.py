"""The configuration of a run: small typed sections, read from TOML, every key checked."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr, ValidationError, field_validator

from hofl.core.errors import HoflError
from hofl.experiment.changes import in_order, load_values, override, with_tables
from hofl.experiment.data_config import CustomConfig, DataConfig, TaskConfig
from hofl.experiment.fleet_config import FleetConfig
from hofl.experiment.section import Section as _Section
from hofl.experiment.section import name_places, sentence
from hofl.methods import Method, method

_Part = str | dict[str, Any]


class ModelConfig(_Section):
    """Which model, and in which precision."""

    name: str
    """Built-in model, folder, GGUF file, or Hugging Face id."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """``random`` builds the model from its configuration alone."""
    storage_dtype: Literal["float32", "bfloat16", "float16", "q8_0", "q4_1"] = "float32"
    """How the frozen backbone is kept in memory."""
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the arithmetic; ``auto`` is float32, which finite differences need."""


class AdapterConfig(_Section):
    """What is trained."""

    kind: Literal["lora", "full"] = "lora"
    """LoRA matrices, or every weight of every block."""
    rank: int = Field(default=8, ge=1)
    """LoRA's rank r."""
    alpha: int = Field(default=16, ge=1)
    """LoRA's scale: updates are multiplied by alpha / r."""
    targets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    """Names of the layers that get LoRA; empty means the query and value projections."""
    start: str | None = None
    """Folder of a PEFT LoRA adapter, or of a finished run, to start from; rank, alpha and targets
    are its own unless set."""
    start_sha256: str | None = None
    """Hash of that start, filled in when a run begins: devices and a resume refuse another."""


class MethodConfig(_Section):
    """A method by name; every other key replaces a value of it.

    A part is a name, or a table of a name and options; a table without a name changes options of
    the part that the method has: ``[method.policy] beta = 0.5``. ``method.policy.statistics``, a
    file of ``hofl beta measure``, gives water-filling its weight and costs.
    """

    name: str = "hofl"
    """One of ``hofl methods``."""
    optimizer: _Part | None = None
    """Local optimizer, sgd or adamw, with lr and its other options."""
    local_steps: int | None = None
    """E, local steps of a participation."""
    bottom: _Part | None = None
    """How blocks below the boundary learn."""
    surrogate: _Part | None = None
    """What a zeroth-order bottom minimises."""
    estimator: _Part | None = None
    """How scalars are estimated along the directions."""
    directions: _Part | None = None
    """How random directions are drawn."""
    q: int | None = None
    """Directions of a local step."""
    mu: float | None = None
    """Radius of a finite difference."""
    proximal: float | None = None
    """FedProx's weight of the distance to the round's start."""
    uplink_bits: int | None = None
    """Bits of each value of an uploaded difference."""
    policy: _Part | None = None
    """How clients are sampled."""
    aggregation: _Part | None = None
    """How the server combines what the cohort sends: mean, by-examples, unbiased, exact-first,
    by-precision, mean-of-scalars, from-start, median or trimmed-mean."""
    workflow: _Part | None = None
    """Who holds which segment in hofl split: shared-steps or local-steps; whole-model elsewhere."""

    def options(self) -> dict[str, Any]:
        """Return the values that replace the method's."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class ServerConfig(_Section):
    """What the server checks, and when a round counts."""

    min_answers: int = Field(default=1, ge=1)
    """A round with fewer good uploads is repeated."""
    attempts: int = Field(default=3, ge=1)
    """How often a round is tried before the run stops."""
    deadline: float = Field(default=600.0, gt=0)
    """Seconds that devices on a network have for a round."""
    wait: float = Field(default=86400.0, gt=0)
    """Seconds that the server waits for enough devices."""
    verify: bool = True
    """Compare a hash of every rebuilt bottom with the device's."""
    secret: Literal["seed", "random"] | None = None
    """Where keys of directions and cohorts come from. ``seed`` makes a run repeatable, and lets
    whoever knows it rebuild what others sent. Unset: ``seed`` in a simulation, else ``random``."""
    divergence: bool = True
    """Stop a run that diverges."""
    keep: int = Field(default=3, ge=1)
    """How many checkpoints are kept."""
    max_ratio: float = Field(default=1000.0, gt=1)
    """Refuse an update whose norm is this many times the usual one; inf refuses none."""
    max_norm: float = Field(default=float("inf"), gt=0)
    """Refuse an update with a larger norm."""
    max_scalar: float = Field(default=float("inf"), gt=0)
    """Refuse an upload with a larger scalar."""


class PrivacyConfig(_Section):
    """Local differential privacy: clipping and noise on every device, see ``hofl.core.privacy``."""

    noise: float = Field(default=0.0, ge=0)
    """The noise multiplier z; 0 means no privacy."""
    scalar_clip: float | None = None
    """Largest size of a scalar; needed with noise."""
    difference_clip: float | None = None
    """Largest norm of a difference; needed with noise."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Epsilon is reported at this delta."""


class EngineConfig(_Section):
    """Where and how clients run."""

    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``."""
    workers: int = Field(default=1, ge=1)
    """Processes that simulate clients."""
    threads: int = Field(default=0, ge=0)
    """Of each worker; 0 shares the cores among them."""
    micro_batch: int = Field(default=0, ge=0)
    """Examples that a client computes at a time; 0 is the whole batch."""
    micro_tokens: int = Field(default=0, ge=0)
    """Tokens that it computes at a time, at least one example; 0 is the whole batch."""
    checkpoint: int = Field(default=0, ge=0)
    """Blocks whose activations a backward pass keeps at a time; 0 is all of the top's."""
    stream_bottom: bool = False
    """Read blocks below the boundary from the model's files whenever they run."""


class EvaluationConfig(_Section):
    """How often to evaluate, and on what; the start and the end are always evaluated."""

    every: int = Field(default=0, ge=0)
    """Evaluate after every so many rounds; 0 is never in between."""
    examples: int = Field(default=0, ge=0)
    """Test examples that are used, always the same ones; 0 is all."""
    curve_examples: int | None = Field(default=None, ge=0)
    """Of them, those that are used before the end; 0 is no further limit. Unset: 1,024 where
    answers are generated, otherwise no further limit."""
    batch_size: int = Field(default=16, ge=1)
    """Examples that are scored at a time."""
    holdout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of every client's examples that is kept out of training and evaluated by client."""
    test: bool = True
    """Use the test set; without it, scores are means over clients."""
    samples: int | None = Field(default=None, ge=0)
    """Fixed test prompts (held-out ones without a test set) that the model of the start and that of
    the end answer, in tasks ``chat`` and ``text``; 0 is none. Unset: 4."""
    rouge: bool = False
    """Score these answers by ROUGE-L, too (extra ``rouge``)."""


class TrackingConfig(_Section):
    """Where else the rounds are shown: names of ``hofl.tracking``, separated by commas or a list.

    Their libraries are extras: ``pip install 'hofl[tensorboard]'``.
    """

    to: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    """tensorboard, wandb, mlflow: one or more."""

    @field_validator("to", mode="before")
    @classmethod
    def _separated(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class ExperimentConfig(_Section):
    """A complete run."""

    name: str = Field(default="run", max_length=64)
    """Of the run, for people."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Of everything random in the run."""
    rounds: int = Field(default=160, ge=1)
    """T, rounds of the run."""
    model: ModelConfig
    adapter: AdapterConfig = AdapterConfig()
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    custom: CustomConfig | None = None
    fleet: FleetConfig = FleetConfig()
    method: MethodConfig = MethodConfig()
    server: ServerConfig = ServerConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()


name_places(ExperimentConfig)


def read_config(source: str, overrides: list[str] | None = None) -> ExperimentConfig:
    """Read a TOML file or a recipe by name, apply ``key=value`` changes, and check the method."""
    values = with_tables(load_values(source))
    for item in in_order(overrides or []):
        override(values, item)
    return checked_method(parse_config(values))


def method_of(config: ExperimentConfig) -> Method:
    """Return the method that a configuration names, with its values in place; loads no torch."""
    return method(config.method.name, **config.method.options())


def checked_method(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration, or refuse one whose method cannot be made."""
    policy = config.method.policy
    if not (isinstance(policy, dict) and "statistics" in policy):  # else that file has its options
        method_of(config).local.check()
    return config


def parse_config(values: dict[str, Any]) -> ExperimentConfig:
    """Check plain values; report all problems at once, one clause each."""
    try:
        return ExperimentConfig.model_validate(with_tables(values))
    except ValidationError as error:
        raise HoflError(sentence(error, ExperimentConfig)) from None
