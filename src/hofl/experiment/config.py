"""The configuration of a run: small typed sections, read from TOML, every key checked."""

import difflib
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, ValidationError

from hofl.errors import HoflError
from hofl.experiment.changes import Section as _Section
from hofl.experiment.changes import override

Dtype = Literal["float32", "bfloat16", "float16"]


class ModelConfig(_Section):
    """Which model, and in which precision."""

    name: str = Field(description="built-in model, folder, or Hugging Face id")
    weights: Literal["pretrained", "random"] = "pretrained"
    storage_dtype: Dtype | Literal["q8_0", "q4_1"] = "float32"
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


class AdapterConfig(_Section):
    """What is trained: LoRA matrices, or every weight of every block."""

    kind: Literal["lora", "full"] = "lora"
    rank: int = Field(default=8, ge=1)
    alpha: int = Field(default=16, ge=1)
    targets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()


class TaskConfig(_Section):
    """What is learnt: a task, one of its prompts, and the batches of a local step.

    ``max_length`` caps the tokens of a prompt; without it the prompt's own cap holds.
    """

    name: str = "helpdesk"
    prompt: str | None = None
    batch_size: int = Field(default=16, ge=1)
    max_length: int | None = Field(default=None, ge=2)


class DataConfig(_Section):
    """Where public sets come from, and how examples are split over the clients.

    ``dir`` is a folder of files; without it HOFL_DATA names one, and else the hub is asked.
    ``partition`` is ``natural`` for data that name their clients and ``iid`` for others, unless
    given. ``examples_per_client`` is the most that a client may use, training and held-out
    together, drawn at random from its shard; 0 means all.
    """

    dir: str | None = None
    partition: str | None = None
    alpha: float | None = None
    per_client: int | None = None
    shards_per_client: int | None = None
    examples_per_client: int = Field(default=0, ge=0)


class CustomConfig(_Section):
    """The user's own data, for ``task.name = "custom"``; see ``hofl.data.tasks.custom``."""

    train: str | Annotated[tuple[StrictStr, ...], Field(strict=False)]
    test: str | Annotated[tuple[StrictStr, ...], Field(strict=False)]
    template: str
    cut: str
    labels: dict[str, str] | None = None
    label_column: str = "label"
    target_column: str | None = None
    client_column: str | None = None
    optional: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    max_new_tokens: int = Field(default=64, ge=1)


class ChangeConfig(_Section):
    """From a round on, a client has another budget. The first round is 1."""

    round: int = Field(ge=1)
    client: int = Field(ge=0)
    budget: str


class PlannedConfig(_Section):
    """What the planner chose for a budget."""

    budget: str
    boundary: int = Field(ge=0)
    micro_batch: int = Field(default=0, ge=0)
    checkpoint: int = Field(default=0, ge=0)
    stream_bottom: bool = False


class FleetConfig(_Section):
    """The devices: N clients, K of them per round, and their order boundaries.

    ``boundaries`` lists the tiers, dealt evenly to the clients by the seed, or one boundary per
    client. Empty means the paper's three tiers at a quarter, half and three quarters of the model.
    ``seed`` settles what belongs to the fleet and not to a training: who holds which examples,
    which boundary and which place among equals. Without it the run's seed does.

    ``budgets`` lists the devices' memory instead (2GiB, 800MiB, or free for what this machine has
    left), by tier or by client; the planner then finds the boundaries by ``strategy``.
    ``memory_trace`` is a CSV file of later changes: from a round on, a client has another budget.
    ``changes`` and ``planned`` are how a finished plan is written down.
    """

    clients: int = Field(default=30, ge=1)
    cohort: int = Field(default=6, ge=1)
    boundaries: Annotated[tuple[StrictInt, ...], Field(strict=False)] = ()
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    budgets: Annotated[tuple[StrictStr, ...], Field(strict=False)] = ()
    strategy: Literal["paper", "best"] = "paper"
    memory_trace: str | None = None
    changes: Annotated[tuple[ChangeConfig, ...], Field(strict=False)] = ()
    planned: Annotated[tuple[PlannedConfig, ...], Field(strict=False)] = ()


class MethodConfig(_Section):
    """A method by name; whatever else is given replaces that value of it.

    ``statistics``, a file of ``hofl beta measure``, gives water-filling its weight and costs.
    """

    name: str = "hofl"
    optimizer: str | None = None
    lr: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    clip_norm: float | None = None
    local_steps: int | None = None
    bottom: str | None = None
    surrogate: str | None = None
    estimator: str | None = None
    q: int | None = None
    mu: float | None = None
    proximal: float | None = None
    uplink_bits: int | None = None
    policy: str | None = None
    beta: float | None = None
    beta_schedule: str | None = None
    beta_end: float | None = None
    min_participations: float | None = None
    weight: float | None = None
    floor: float | None = None
    costs: Annotated[tuple[float, ...] | None, Field(strict=False)] = None
    statistics: str | None = Field(default=None, description="file that gives weight and costs")
    aggregation: str | None = None
    shared_directions: bool | None = None


class ServerConfig(_Section):
    """What the server checks, and when a round counts.

    A round with fewer than ``min_answers`` good uploads is repeated, up to ``attempts`` times.
    Devices on a network have ``deadline`` seconds for a round, and the server waits ``wait``
    seconds for enough of them.
    """

    min_answers: int = Field(default=1, ge=1)
    attempts: int = Field(default=3, ge=1)
    deadline: float = Field(default=600.0, gt=0)
    wait: float = Field(default=86400.0, gt=0)
    verify: bool = True
    max_norm: float = Field(default=float("inf"), gt=0)
    max_scalar: float = Field(default=float("inf"), gt=0)


class PrivacyConfig(_Section):
    """Local differential privacy: clipping and noise on every device, see ``hofl.privacy``.

    ``noise`` is the multiplier z; 0 is no privacy at all. ``delta`` is what epsilon is stated for.
    """

    noise: float = Field(default=0.0, ge=0)
    scalar_clip: float | None = None
    difference_clip: float | None = None
    delta: float = Field(default=1e-5, gt=0, lt=1)


class EngineConfig(_Section):
    """Where and how clients run.

    ``threads`` 0 shares the cores among the workers. ``micro_batch`` is how many examples a client
    computes at a time, of similar lengths; 0 is the whole batch. ``checkpoint`` is how many blocks'
    activations a backward pass keeps at a time; 0 is all of the top's. With ``stream_bottom`` the
    blocks below the boundary are read from the model's files whenever they run.
    """

    device: str = "auto"
    workers: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)
    micro_batch: int = Field(default=0, ge=0)
    checkpoint: int = Field(default=0, ge=0)
    stream_bottom: bool = False


class EvaluationConfig(_Section):
    """How often to evaluate, and on what; the start and the end are always evaluated.

    ``holdout`` is the share of every client's examples that is kept out of training and evaluated
    client by client. With ``test`` off, the test set is left alone and the means over clients
    stand in its place. Before the end, at most ``curve_examples`` of the test set are used, the
    same ones every time; 0 is all of it. Without it, answers that are written are scored on 1,024
    examples and answers that are chosen on all.
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
    """A configuration from a TOML file or a recipe's name, with ``key=value`` changes."""
    values = _load(source)
    for item in overrides or []:
        override(values, item)
    return parse_config(values)


def parse_config(values: dict[str, Any]) -> ExperimentConfig:
    """Check plain values; all problems are told at once, one clause each."""
    try:
        return ExperimentConfig.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_problem(detail) for detail in error.errors())
        raise HoflError(f"configuration: {problems}.") from None


def recipes() -> list[str]:
    """Names of the configurations that ship with the package."""
    entries = files("hofl.recipes").iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml"))


def _load(source: str) -> dict[str, Any]:
    path = Path(source)
    try:
        if path.suffix != ".toml" and source in recipes():
            text = files("hofl.recipes").joinpath(f"{source}.toml").read_text(encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HoflError(f"{source} is not valid TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise HoflError(
            f"cannot read configuration {source!r}: {reason}. "
            f"Give a TOML file or one of the recipes: {', '.join(recipes())}."
        ) from None


def _problem(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    name = ".".join(path)
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
    section: Any = ExperimentConfig
    for part in path:
        section = section.model_fields[part].annotation
    return list(section.model_fields)
