"""The configuration of a run: small typed sections, read from TOML, every key checked."""

import difflib
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StrictStr, ValidationError

from hofl.core.errors import HoflError
from hofl.experiment.changes import Section as _Section
from hofl.experiment.changes import load_values, names_part, override, with_tables
from hofl.experiment.data_config import CustomConfig, DataConfig, TaskConfig
from hofl.experiment.fleet_config import FleetConfig
from hofl.methods import PART_OPTIONS, method

Dtype = Literal["float32", "bfloat16", "float16"]
_Part = str | dict[str, Any]


class ModelConfig(_Section):
    """Which model, and in which precision."""

    name: str = Field(description="built-in model, folder, GGUF file, or Hugging Face id")
    weights: Literal["pretrained", "random"] = "pretrained"
    storage_dtype: Dtype | Literal["q8_0", "q4_1"] = "float32"
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


class AdapterConfig(_Section):
    """What is trained: LoRA matrices, or every weight of every block."""

    kind: Literal["lora", "full"] = "lora"
    rank: int = Field(default=8, ge=1)
    alpha: int = Field(default=16, ge=1)
    targets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()


class MethodConfig(_Section):
    """A method by name; every other key replaces a value of it.

    A part is a name, or a table of a name and options; a table without a name changes options of
    the part that the method has: ``[method.policy] beta = 0.5``. ``method.policy.statistics``, a
    file of ``hofl beta measure``, gives water-filling its weight and costs.
    """

    name: str = "hofl"
    optimizer: _Part | None = None
    local_steps: int | None = None
    bottom: _Part | None = None
    surrogate: _Part | None = None
    estimator: _Part | None = None
    directions: _Part | None = None
    q: int | None = None
    mu: float | None = None
    proximal: float | None = None
    uplink_bits: int | None = None
    policy: _Part | None = None
    aggregation: _Part | None = None

    def options(self) -> dict[str, Any]:
        """Return the values that replace the method's."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class ServerConfig(_Section):
    """What the server checks, and when a round counts.

    A round with fewer than ``min_answers`` good uploads is repeated, up to ``attempts`` times.
    Devices on a network have ``deadline`` seconds for a round, and the server waits ``wait``
    seconds for enough of them. ``divergence`` stops a run that diverges. ``secret`` is where keys
    of directions and cohorts come from: ``random``, or the ``seed``, which makes a run repeatable
    and lets whoever knows the seed rebuild what others sent. Unset: ``seed`` in a simulation.
    ``keep`` is how many checkpoints are kept. An update whose norm is ``max_ratio`` times the usual
    one is refused (``hofl.server.outliers``); inf refuses none.
    """

    min_answers: int = Field(default=1, ge=1)
    attempts: int = Field(default=3, ge=1)
    deadline: float = Field(default=600.0, gt=0)
    wait: float = Field(default=86400.0, gt=0)
    verify: bool = True
    secret: Literal["seed", "random"] | None = None
    divergence: bool = True
    keep: int = Field(default=3, ge=1)
    max_ratio: float = Field(default=1000.0, gt=1)
    max_norm: float = Field(default=float("inf"), gt=0)
    max_scalar: float = Field(default=float("inf"), gt=0)


class PrivacyConfig(_Section):
    """Local differential privacy: clipping and noise on every device, see ``hofl.core.privacy``.

    ``noise`` is the multiplier z; 0 means no privacy. Epsilon is reported at ``delta``.
    """

    noise: float = Field(default=0.0, ge=0)
    scalar_clip: float | None = None
    difference_clip: float | None = None
    delta: float = Field(default=1e-5, gt=0, lt=1)


class EngineConfig(_Section):
    """Where and how clients run.

    ``threads`` 0 shares the cores among the workers. ``micro_batch`` is how many examples a client
    computes at a time, ``micro_tokens`` how many tokens (at least one example); 0 is the whole
    batch. ``checkpoint`` is how many blocks' activations a backward pass keeps at a time; 0 is all
    of the top's. With ``stream_bottom`` the blocks below the boundary are read from the model's
    files whenever they run.
    """

    device: str = "auto"
    workers: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)
    micro_batch: int = Field(default=0, ge=0)
    micro_tokens: int = Field(default=0, ge=0)
    checkpoint: int = Field(default=0, ge=0)
    stream_bottom: bool = False


class EvaluationConfig(_Section):
    """How often to evaluate, and on what; the start and the end are always evaluated.

    ``holdout`` is the share of every client's examples that is kept out of training and evaluated
    client by client. With ``test`` off, the test set is not used, and scores are means over
    clients. Before the end, at most ``curve_examples`` of the test set are used, always the same
    ones; 0 is all of it. Unset: 1,024 where answers are generated, otherwise all.
    """

    every: int = Field(default=0, ge=0)
    curve_examples: int | None = Field(default=None, ge=0)
    batch_size: int = Field(default=16, ge=1)
    holdout: float = Field(default=0.0, ge=0.0, lt=1.0)
    test: bool = True


class ExperimentConfig(_Section):
    """A complete run."""

    name: str = Field(default="run", max_length=64)
    seed: int = Field(default=42, ge=0, lt=2**63)
    rounds: int = Field(default=160, ge=1)
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


def read_config(source: str, overrides: list[str] | None = None) -> ExperimentConfig:
    """Read a TOML file or a recipe by name, apply ``key=value`` changes, and check the method."""
    values = with_tables(load_values(source))
    for item in sorted(overrides or [], key=lambda item: not names_part(item)):
        override(values, item)  # a part's name first: it replaces the part with its options
    return checked_method(parse_config(values))


def checked_method(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration, or refuse one whose method cannot be made."""
    chosen = config.method.options()
    policy = chosen.get("policy")
    if not (isinstance(policy, dict) and "statistics" in policy):  # else that file has its options
        method(config.method.name, **chosen).local.check()
    return config


def parse_config(values: dict[str, Any]) -> ExperimentConfig:
    """Check plain values; report all problems at once, one clause each."""
    try:
        return ExperimentConfig.model_validate(with_tables(values))
    except ValidationError as error:
        problems = "; ".join(dict.fromkeys(_problem(detail) for detail in error.errors()))
        raise HoflError(f"configuration: {problems}.") from None


def _problem(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    name = ".".join(path)
    if path[0] == "method" and len(path) > 2 and path[1] in PART_OPTIONS:
        return f"method.{path[1]} = {detail['input']!r}: should be a name or a table"
    if detail["type"] == "extra_forbidden":
        known = _keys_at(path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(known)}"
        return f"unknown key {name!r}, {hint}"
    if detail["type"] == "missing":
        return f"{name!r} is required"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return f"{name} = {detail['input']!r}: {message}"


def _keys_at(path: list[str]) -> list[str]:
    """Return the keys of the section at a path, through lists and optional sections."""
    section: type[_Section] = ExperimentConfig
    for part in path:
        if part in section.model_fields:
            section = _section_in(section.model_fields[part].annotation) or section
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[_Section] | None:
    """Return the section that a field holds, itself, optional or in a list; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
