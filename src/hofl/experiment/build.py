"""From a configuration to the objects of a run. Only this file reads configurations."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hofl.client import LocalClient
from hofl.data.encoding import EncodedSet, encode
from hofl.data.task import Example, Task
from hofl.errors import HoflError
from hofl.experiment.config import ExperimentConfig, FleetConfig, MethodConfig
from hofl.experiment.fleet import build_fleet, check_fleet
from hofl.experiment.present import Present, policy_for
from hofl.experiment.protection import check_limits, privacy_of
from hofl.experiment.tasks import curve_examples, fleet_seed, resolved_task, shards_of
from hofl.layout import Layout
from hofl.local.rules import check_rule
from hofl.messages import RoundPlan
from hofl.methods import Method, method, options_of
from hofl.models.adapters import FullBlocks, Lora
from hofl.models.families import family_of
from hofl.models.loading import LoadedModel, load_model
from hofl.models.sources import SOURCES
from hofl.planning.fleet import FleetPlan
from hofl.privacy import Privacy
from hofl.randomness import Purpose, generator
from hofl.sampling.measured import fitted_options, load_statistics
from hofl.sampling.policies import draw_cohort
from hofl.server.aggregate import AGGREGATIONS
from hofl.server.checks import UploadLimits


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything a run needs, built and checked.

    Args:
        config: the complete, resolved configuration.
        method: the federated method.
        model: the loaded model (one backbone for all clients).
        start: w_0, [d].
        fleet: the devices of every round.
        memory_plan: how their boundaries were chosen, as plain values; empty when they were given.
        train: all encoded training examples, held-out ones included.
        held_out: which of them each client keeps out of its training, [N]; empty without any.
        test: encoded test set; empty when it is not evaluated.
        curve: which of its examples are scored before the end; None is all.
        client: computes answers to plans in this process.
        limits: bounds on uploads.
        privacy: what devices do to protect their data; None is nothing.
        note: what the user should know about the data.
    """

    config: ExperimentConfig
    method: Method
    model: LoadedModel
    start: Tensor
    fleet: FleetPlan
    memory_plan: dict[str, Any]
    train: EncodedSet
    held_out: tuple[np.ndarray, ...]
    test: EncodedSet
    curve: Sequence[int] | None
    client: LocalClient
    limits: UploadLimits
    privacy: Privacy | None
    note: str = ""

    @property
    def layout(self) -> Layout:
        """The shared coordinates."""
        return self.model.split.layout

    @cached_property
    def run(self) -> str:
        """The run's name with a fingerprint of its configuration."""
        digest = hashlib.sha256(self.config.model_dump_json().encode()).hexdigest()
        return f"{self.config.name}-{digest[:12]}"

    def boundaries(self, round_number: int = 0) -> tuple[int, ...]:
        """b_i of each client under this method in round t, [N]."""
        epoch = self.fleet.epoch(round_number)
        if epoch not in self._boundaries:
            own = [device.boundary for device in self.fleet.at(round_number)]
            blocks = self.layout.num_blocks
            self._boundaries[epoch] = tuple(self.method.boundary(b, own, blocks) for b in own)
        return self._boundaries[epoch]

    @cached_property
    def _boundaries(self) -> dict[int, tuple[int, ...]]:
        return {}

    def scores(self, round_number: int = 0) -> np.ndarray:
        """d_ZO / q of each client in round t, [N]."""
        dimensions = [self.layout.cut(b) for b in self.boundaries(round_number)]
        return np.array(dimensions, dtype=np.float64) / max(self.method.local.q, 1)

    def present(self, round_number: int, own: Mapping[int, int] | None) -> Present:
        """Those who are there in round t, by their own boundaries; None is the whole fleet."""
        if own is not None:
            return Present.of(own, self.method.boundary, self.layout.num_blocks)
        cuts = np.array(self.boundaries(round_number), dtype=np.int64)
        return Present(np.arange(len(cuts)), cuts)

    def marginals(self, round_number: int, present: Present | None = None) -> np.ndarray:
        """Shares p of round t among those who are there, [n]; without them, among all N."""
        config, policy, scores = self.config, self.method.policy, self.scores(round_number)
        if present is not None:
            policy = policy_for(policy, present)
            cuts = np.array([self.layout.cut(b) for b in range(self.layout.num_blocks + 1)])
            scores = cuts[present.boundaries].astype(np.float64) / max(self.method.local.q, 1)
        cohort = min(config.fleet.cohort, len(scores))
        return policy.marginals(scores, cohort, fleet_seed(config), round_number, config.rounds)

    def cohort(
        self, round_number: int, present: Present | None = None, attempt: int = 0
    ) -> list[int]:
        """S_t: drawn anew when the round is attempted again."""
        p = self.marginals(round_number, present)
        size = min(self.config.fleet.cohort, len(p))
        drawn = draw_cohort(p, size, self.config.seed, round_number, attempt)
        return drawn if present is None else present.clients[drawn].tolist()

    def plan(
        self, round_number: int, client: int, w: Tensor, present: Present | None = None
    ) -> RoundPlan:
        """What client i is to do in round t."""
        return RoundPlan(
            run=self.run,
            round=round_number,
            client=client,
            boundary=(present or self.present(round_number, None)).boundary(client),
            seed=self.config.seed,
            layout=self.layout.digest,
            rule=self.method.local,
            w=w,
            shared_directions=self.method.shared_directions,
            verify=self.config.server.verify,
            privacy=self.privacy,
        )

    def drops_out(self, round_number: int, client: int) -> bool:
        """Simulated dropout of a client in a round."""
        rng = generator(self.config.seed, Purpose.DROPOUT, round_number, client)
        return bool(rng.random() < self.config.fleet.dropout)


def build(config: ExperimentConfig, *, device: str | None = None) -> Experiment:
    """Load, check and connect everything a configuration names; writes nothing."""
    chosen = build_method(config)
    check_fleet(config)
    private = privacy_of(config.privacy)
    if config.adapter.kind == "full" and config.model.compute_dtype not in ("auto", "float32"):
        raise HoflError("adapter.kind=full trains FP32 weights: set model.compute_dtype=float32.")
    config, task = resolved_task(config)
    shards, held_out = shards_of(config, task)
    model = model_of(config, device)
    train = encoded(config, task, task.train, model)
    fleet = build_fleet(config, chosen, model.split, train, adapter_of(config))
    experiment = Experiment(
        config=resolved(config, chosen, model, fleet.config),
        method=chosen,
        model=model,
        start=model.split.w.cpu().clone(),
        fleet=fleet.plan,
        memory_plan=fleet.facts,
        train=train,
        held_out=tuple(held_out),
        test=encoded(config, task, task.test if config.evaluation.test else (), model),
        curve=curve_examples(config, task),
        client=LocalClient(
            model.split,
            train,
            shards,
            config.task.batch_size,
            lambda plan: fleet.plan.at(plan.round)[plan.client].execution,
        ),
        limits=UploadLimits(max_norm=config.server.max_norm, max_scalar=config.server.max_scalar),
        privacy=private,
        note=task.note,
    )
    if config.method.statistics is not None:
        _check_measured_fleet(config.method.statistics, experiment.boundaries())
    if private is not None:
        check_limits(private, experiment.limits, chosen.local, experiment.layout.size)
    experiment.marginals(0)  # a policy that cannot serve this fleet says so now
    return experiment


def resolved(
    config: ExperimentConfig, chosen: Method, model: LoadedModel, fleet: FleetConfig
) -> ExperimentConfig:
    """The configuration with every default settled, so that a resume elsewhere means the same."""
    split, name = model.split, config.model.name
    sections: dict[str, tuple[Any, dict[str, Any]]] = {
        "model": (
            config.model,
            {
                "name": name if name in SOURCES else model.reference,
                "compute_dtype": str(split.compute_dtype).removeprefix("torch."),
            },
        ),
        "adapter": (
            config.adapter,
            {"targets": config.adapter.targets or family_of(split.config).lora_targets},
        ),
        "engine": (config.engine, {"threads": torch.get_num_threads()}),
    }
    update = {key: old.model_copy(update=new) for key, (old, new) in sections.items()}
    update["fleet"] = fleet
    update["method"] = MethodConfig(name=config.method.name, **options_of(chosen))
    return config.model_copy(update=update)


def build_method(config: ExperimentConfig) -> Method:
    """The method with the configuration's values in place of its own."""
    fields = config.method
    options: dict[str, Any] = fields.model_dump(exclude={"name", "statistics"}, exclude_none=True)
    if fields.statistics is not None:
        options = fitted_options(fields.statistics, options, config.fleet.cohort)
    chosen = method(config.method.name, **options)
    check_rule(chosen.local)
    if chosen.aggregation not in AGGREGATIONS:
        raise HoflError(
            f"unknown aggregation {chosen.aggregation!r}: choose one of {', '.join(AGGREGATIONS)}."
        )
    return chosen


def _check_measured_fleet(file: str, boundaries: tuple[int, ...]) -> None:
    """A cost belongs to a client: statistics of other clients would be given to the wrong ones."""
    _, measured = load_statistics(file)
    if len(measured) != len(boundaries):
        raise HoflError(f"{file!r} holds {len(measured)} clients, the fleet {len(boundaries)}.")
    for client, (then, now) in enumerate(zip(measured, boundaries, strict=True)):
        if then != now:
            raise HoflError(
                f"{file!r} was measured on another fleet: client {client} had boundary {then} and "
                f"has {now}. Measure this one with hofl beta measure."
            )


def encoded(
    config: ExperimentConfig, task: Task, examples: Sequence[Example], model: LoadedModel
) -> EncodedSet:
    """Examples through the model's tokenizer, within its window."""
    most = config.task.max_length
    assert most is not None, "settled by resolved_task"
    window = getattr(model.split.config, "max_position_embeddings", most)
    if most > window:
        raise HoflError(f"task.max_length {most} exceeds the model's window of {window}.")
    prompt = task.prompt(config.task.prompt)
    found = encode(examples, prompt, model.tokenizer, most, window)
    if len(found):
        found.encoded(0)  # a cap below the template itself is told before anything runs
    return found


def model_of(config: ExperimentConfig, device: str | None = None) -> LoadedModel:
    """The model that a configuration names, with what is trained attached."""
    return load_model(
        config.model.name,
        adapter=adapter_of(config),
        seed=config.seed,
        weights=config.model.weights,
        storage_dtype=config.model.storage_dtype,
        compute_dtype=config.model.compute_dtype,
        device=device or config.engine.device,
        stream=config.engine.stream_bottom,
    )


def adapter_of(config: ExperimentConfig) -> Lora | FullBlocks:
    """What is trained."""
    if config.adapter.kind == "full":
        return FullBlocks()
    fields = config.adapter
    return Lora(rank=fields.rank, alpha=fields.alpha, targets=fields.targets)
