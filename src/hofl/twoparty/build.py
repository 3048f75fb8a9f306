"""From a configuration to the roles of a split run: the setting, data, cohorts, halves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hofl.core.batch import Batch
from hofl.core.errors import HoflError
from hofl.core.process import tune_allocator, use_threads
from hofl.core.secret import RunSecret
from hofl.data.shards import minibatches
from hofl.experiment.build import Simulation
from hofl.experiment.config import ExperimentConfig, ServerConfig
from hofl.experiment.method import build_method
from hofl.experiment.model import adapter_of, encoded
from hofl.experiment.start import started
from hofl.experiment.tasks import fleet_seed, resolved_task, shards_of
from hofl.methods import MEAN, METHODS, Method
from hofl.models.adapters import Lora
from hofl.models.halves import Half, build_half
from hofl.models.loading import (
    DTYPES,
    LoadedModel,
    load_tokenizer,
    read_model_config,
    resolve_reference,
)
from hofl.rules import DIRECTIONS, SURROGATES, LocalRule
from hofl.sampling.policies import draw_cohort
from hofl.twoparty.client import Batches
from hofl.twoparty.setting import Setting
from hofl.workflows import WORKFLOWS

RULE_READ = {
    *("optimizer", "local_steps", "q", "mu"),
    *("bottom", "surrogate", "estimator", "directions"),
}
"""Fields of a local rule that split workflows use; another must have its default."""
SERVER_READ = {"deadline", "secret"}
"""Keys of the section ``server`` that they use; another must have its default."""


def check_split(config: ExperimentConfig, method: Method, processes: int = 0) -> None:
    """Refuse a configuration that a split workflow cannot carry out, before anything is loaded."""
    if not method.splits:
        names = ", ".join(name for name, entry in METHODS.items() if entry.splits)
        raise HoflError(
            f"method {config.method.name!r} has no split workflow: choose one of {names}, or use "
            "hofl run."
        )
    if not method.local.traits.sends_scalars:
        raise HoflError(
            f"a split workflow trains the bottom from scalars, not by {method.local.bottom.name!r}:"
            " set method.bottom=zeroth-order."
        )
    if config.fleet.budgets or config.fleet.devices:
        raise HoflError(
            "hofl split cuts every client at one boundary: set fleet.boundaries=[B] in place of "
            "budgets or devices (hofl plan --method says what a role needs)."
        )
    if config.adapter.kind != "lora":
        raise HoflError("hofl split trains LoRA: set adapter.kind=lora.")
    if config.privacy.noise:
        raise HoflError("activations travel unprotected in hofl split: set privacy.noise=0.")
    if config.fleet.dropout:
        raise HoflError("hofl split does not simulate dropouts: set fleet.dropout=0.")
    for key, got, only in _without_effect(config, method):
        if got != only:
            shown, usual = (str(v).lower() if isinstance(v, bool) else v for v in (got, only))
            raise HoflError(f"{key}={shown} has no effect in hofl split: set {key}={usual}.")
    if DIRECTIONS[method.local.directions.name].keep is not None:
        raise HoflError(
            f"directions {method.local.directions.name!r} need what a server of whole models "
            "keeps: set method.directions=gaussian, or use hofl run."
        )
    if processes:
        _check_processes(config, processes)
    setting_of(config, method, boundary=1)  # refuse options of the workflow


def _without_effect(config: ExperimentConfig, method: Method) -> Iterator[tuple[str, Any, Any]]:
    """Yield what would change a run of whole models and not a split one: key, value, default."""
    yield "method.aggregation", method.aggregation.name, MEAN.name
    for field in fields(LocalRule):
        if field.name not in RULE_READ:
            yield f"method.{field.name}", getattr(method.local, field.name), field.default
    for name, key in ServerConfig.model_fields.items():
        if name not in SERVER_READ:
            yield f"server.{name}", getattr(config.server, name), key.default


def _check_processes(config: ExperimentConfig, processes: int) -> None:
    """Refuse what roles in processes of their own cannot do, and processes without a client."""
    clients = config.fleet.clients
    if processes > clients:
        raise HoflError(
            f"{processes} processes for {clients} clients leave some without any: set --processes "
            f"to at most {clients}."
        )
    if config.engine.device not in ("auto", "cpu"):
        raise HoflError(
            f"processes compute on the CPU, not on {config.engine.device!r:.40}: set "
            "engine.device=cpu, or leave out --processes."
        )
    if not _in_files(config):
        raise HoflError(
            "processes read their halves from the model's files: set model.weights=pretrained and "
            f"model.storage_dtype to one of {', '.join(DTYPES)}, or leave out --processes."
        )


def _in_files(config: ExperimentConfig) -> bool:
    """Tell whether the halves of a model can be read from its files."""
    return config.model.weights == "pretrained" and config.model.storage_dtype in DTYPES


def common_boundary_of(simulation: Simulation) -> int:
    """Return the boundary of every client; refuse one that leaves a role without a block."""
    distinct, most = sorted({*simulation.boundaries()}), simulation.layout.num_blocks - 1
    boundary = distinct[-1]
    if len(distinct) > 1:
        raise HoflError(
            f"hofl split cuts every client at one boundary, got {distinct}: set "
            "fleet.boundaries=[B]."
        )
    if not 1 <= boundary <= most:
        raise HoflError(
            f"a boundary between client and server lies in 1..{most}, got {boundary}: set "
            "fleet.boundaries."
        )
    return boundary


def setting_of(config: ExperimentConfig, method: Method, boundary: int) -> Setting:
    """Return what both roles agree on."""
    maker = WORKFLOWS[method.workflow.name].make
    assert maker is not None
    workflow = method.workflow.made_by(maker, method.local)
    return Setting(rule=method.local, boundary=boundary, seed=config.seed, workflow=workflow)


def cohorts_of(
    config: ExperimentConfig, method: Method, secret: RunSecret
) -> Callable[[int], Sequence[int]]:
    """Return the cohort of every step. All clients have one boundary, hence equal scores."""
    scores = np.ones(config.fleet.clients)
    policy = method.policy.for_clients(np.arange(config.fleet.clients))
    size = min(config.fleet.cohort, config.fleet.clients)

    def cohort(step: int) -> list[int]:
        p = policy.marginals(scores, size, fleet_seed(config), step, config.rounds)
        return draw_cohort(p, size, secret.cohorts(), step, 0)

    return cohort


def batches_of(config: ExperimentConfig, method: Method, model: LoadedModel) -> Batches:
    """Return the data of all clients; examples are encoded when they are drawn."""
    config, task = resolved_task(config)
    shards, held_out = shards_of(config, task)
    train, rows = encoded(config, task, task.train, model).grouped([*shards, *held_out])

    def batches(step: int, client: int) -> list[Batch]:
        drawn = minibatches(
            rows[client],
            seed=config.seed,
            round_number=step,
            client=client,
            steps=method.local.local_steps,
            batch_size=config.task.batch_size,
        )
        return [train.batch(indices) for indices in drawn]

    return batches


@dataclass(frozen=True)
class Side:
    """One side of a split run in a process of its own.

    Args:
        method: the run's.
        setting: what both sides agree on.
        model: this side's half.
        rounds: T.
        deadline: seconds that the other side has for a message.
    """

    method: Method
    setting: Setting
    model: LoadedModel
    rounds: int
    deadline: float


def build_side(config: ExperimentConfig, half: Half, boundary: int) -> Side:
    """Set up this process as a configuration says, and build one side of its run."""
    tune_allocator()
    use_threads(config.engine.threads)
    method = build_method(config)
    setting = setting_of(config, method, boundary)
    model = _half_of(config, half, setting)
    return Side(method, setting, model, config.rounds, config.server.deadline)


def _half_of(config: ExperimentConfig, half: Half, setting: Setting) -> LoadedModel:
    """Load one half of the model that a configuration names, and nothing of the other."""
    section, part = config.model, setting.rule.surrogate
    adapter = adapter_of(config)
    assert isinstance(adapter, Lora)
    reference, hugging_face = resolve_reference(section.name), read_model_config(section.name)
    computed = "float32" if section.compute_dtype == "auto" else section.compute_dtype
    split = build_half(
        hugging_face,
        reference,
        half,
        setting.boundary,
        adapter=adapter,
        seed=config.seed,
        storage_dtype=DTYPES[section.storage_dtype],
        compute_dtype=DTYPES[computed],
        surrogate=part.made_by(SURROGATES[part.name].make).parameters(hugging_face),
    )
    loaded = LoadedModel(split, load_tokenizer(reference), reference, section.name)
    started(config, loaded)
    return loaded
