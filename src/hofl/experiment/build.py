"""From a configuration to the objects of a run, in three roles that share every step.

- a *simulation* has everything: server, devices and all their data, in one process;
- a *server* has the model and the test set, but neither devices nor their data;
- a *device* (``hofl.experiment.device``) has the model and its own data.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hofl.core.errors import HoflError
from hofl.core.layout import Layout
from hofl.core.privacy import Privacy
from hofl.core.randomness import Purpose, generator
from hofl.core.secret import COHORT, RunSecret
from hofl.data.encoded import EncodedSet, Question
from hofl.data.task import Form, Task
from hofl.engines.base import DeviceOffer
from hofl.engines.client import LocalClient
from hofl.experiment.config import ExperimentConfig
from hofl.experiment.fleet import FleetPlan, build_fleet, check_fleet
from hofl.experiment.fleet_config import FleetConfig
from hofl.experiment.method import (
    build_method,
    build_privacy,
    check_head,
    check_limits,
    check_measured_fleet,
)
from hofl.experiment.model import adapter_of, encoded, encoded_test, model_of
from hofl.experiment.present import Present
from hofl.experiment.records import Attempt
from hofl.experiment.resolved import resolved, with_secret
from hofl.experiment.start import started, with_start
from hofl.experiment.tasks import (
    HeldOut,
    curve_examples,
    fleet_seed,
    resolved_task,
    sample_questions,
    shards_of,
    task_to_test,
)
from hofl.messages import RoundPlan
from hofl.methods import Method
from hofl.models.loading import LoadedModel
from hofl.rules import LocalRule
from hofl.sampling.policies import Policy, draw_cohort
from hofl.server.checks import UploadLimits
from hofl.server.state import ServerState, keeper_of
from hofl.variants import changed


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What the loop of rounds needs, built and checked.

    Args:
        config: the complete, resolved configuration.
        method: the federated method.
        model: the loaded model.
        start: w_0 and the other vectors that the server keeps.
        secret: from which keys and cohorts are derived.
        prompt: what the model is trained to answer.
        test: encoded test set; None when it is not evaluated.
        curve: which of its examples are scored before the end; None is all.
        questions: that the model of the start and that of the end are asked.
        limits: bounds on uploads.
        privacy: how devices protect their data; None is not at all.
        note: what the user should know about the data.
        held_out: examples scored client by client; None without any.
        memory_plan: how boundaries were chosen, as plain values; empty when they were given.
    """

    config: ExperimentConfig
    method: Method
    model: LoadedModel
    start: ServerState
    secret: RunSecret
    prompt: Form
    test: EncodedSet | None
    curve: Sequence[int] | None
    limits: UploadLimits
    privacy: Privacy | None
    note: str = ""
    held_out: HeldOut | None = None
    memory_plan: dict[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()

    @property
    def layout(self) -> Layout:
        """The shared coordinates."""
        return self.model.split.layout

    @property
    def rounds(self) -> int:
        """T, how many rounds the run has."""
        return self.config.rounds

    @property
    def cohort_size(self) -> int:
        """K, how many clients a round asks when enough are present."""
        return self.config.fleet.cohort

    @cached_property
    def run(self) -> str:
        """The run's name with a fingerprint of its configuration."""
        digest = hashlib.sha256(self.config.model_dump_json().encode()).hexdigest()
        return f"{self.config.name}-{digest[:12]}"

    def present(
        self, round_number: int, offers: Mapping[int, DeviceOffer] | None = None
    ) -> Present:
        """Return the clients that can be drawn in round t: the devices that joined."""
        assert offers is not None, "only a simulation knows its devices beforehand"
        return Present.of(offers, self.method, self.layout.num_blocks)

    def scores(self, present: Present) -> np.ndarray:
        """Return d_ZO / q of each client, [n]; d_ZO is 0 where a bottom is trained exactly."""
        return present.inexact(self.layout).astype(np.float64) / max(self.method.local.q, 1)

    def marginals(
        self, round_number: int, present: Present, policy: Policy | None = None
    ) -> np.ndarray:
        """Return shares p of round t among the clients present, [n], by the method's policy.

        With ``policy``, by that one instead.
        """
        scores, seed = self.scores(present), fleet_seed(self.config)
        chosen = (policy or self.method.policy).for_clients(present.clients)
        cohort = min(self.cohort_size, len(scores))
        return chosen.marginals(scores, cohort, seed, round_number, self.rounds)

    def cohort(self, round_number: int, present: Present, attempt: int = 0) -> list[int]:
        """Draw the cohort S_t; every attempt is another draw."""
        p = self.marginals(round_number, present)
        size = min(self.cohort_size, len(p))
        drawn = draw_cohort(p, size, self.secret.cohorts(), round_number, attempt)
        clients: list[int] = present.clients[drawn].tolist()
        return clients

    def plan(self, state: ServerState, client: int, present: Present) -> RoundPlan:
        """Make the plan of client i for round t."""
        shared = self.method.local.shares_directions
        return RoundPlan(
            run=self.run,
            round=state.round,
            client=client,
            boundary=present.boundary(client),
            key=self.secret.directions(state.round, COHORT if shared else client),
            seed=self.secret.draws(state.round, client),
            layout=self.layout.digest,
            rule=present.rule(client),
            w=state.w,
            vectors=state.vectors,
            verify=self.config.server.verify,
            privacy=self.privacy,
            start=self.config.adapter.start_sha256 or "",
        )

    def rule_in(self, attempt: Attempt, round_number: int, client: int) -> LocalRule:
        """Return the rule of a client's plan in an attempt at round t that was recorded."""
        return changed(self.method.local, attempt.rules.get(client, {}))

    def drops_out(self, round_number: int, client: int, attempt: int = 0) -> bool:
        """Return whether a client drops out of a simulated round; every attempt is another draw."""
        rng = generator(self.config.seed, Purpose.DROPOUT, round_number, client, attempt)
        return bool(rng.random() < self.config.fleet.dropout)


@dataclass(frozen=True, kw_only=True)
class Simulation(Experiment):
    """An experiment with all its devices and their data in one process.

    Args:
        fleet: boundary and execution of every device in every round.
        train: all encoded training examples, held-out ones included.
        client: computes answers to plans for any of the devices.
    """

    fleet: FleetPlan
    train: EncodedSet
    client: LocalClient

    def present(
        self, round_number: int, offers: Mapping[int, DeviceOffer] | None = None
    ) -> Present:
        """Return the clients that can be drawn in round t: the whole fleet, or those joined."""
        if offers is not None:
            return super().present(round_number, offers)
        epoch = self.fleet.epoch(round_number)
        if epoch not in self._present:
            devices = zip(self.fleet.at(round_number), self.client.sizes, strict=True)
            fleet = {i: DeviceOffer(d.boundary, n, d.rule) for i, (d, n) in enumerate(devices)}
            self._present[epoch] = super().present(round_number, fleet)
        return self._present[epoch]

    def rule_in(self, attempt: Attempt, round_number: int, client: int) -> LocalRule:
        """Return the same; where no devices joined, it follows from the round."""
        if attempt.present is not None:
            return super().rule_in(attempt, round_number, client)
        return self.present(round_number).rule(client)

    @cached_property
    def _present(self) -> dict[int, Present]:
        return {}

    def boundaries(self, round_number: int = 0) -> tuple[int, ...]:
        """Return b_i of each client under this method in round t, [N]."""
        return tuple(self.present(round_number).boundaries.tolist())


def build_simulation(config: ExperimentConfig, *, device: str | None = None) -> Simulation:
    """Load, check and connect everything a configuration names; writes nothing."""
    method = build_method(config)
    check_fleet(config)
    config, task = resolved_task(with_secret(with_start(config), "seed"))
    shards, held_out = shards_of(config, task)
    model = model_of(config, method, device)
    config = started(config, model)
    train, rows = encoded(config, task, task.train, model).grouped([*shards, *held_out])
    shards, held_out = rows[: len(shards)], rows[len(shards) :]
    fleet = build_fleet(
        config, method, model.split, train, adapter_of(config), min(map(len, shards))
    )
    served = _served(config, method, task, model, fleet.config)
    if served["test"] is None:  # then the held-out examples are asked
        asked = sample_questions(train, config.evaluation, np.concatenate(held_out).tolist())
        served["questions"] = tuple(asked)
    simulation = Simulation(
        **served,
        held_out=HeldOut(train, tuple(held_out)) if held_out else None,
        memory_plan=fleet.facts,
        fleet=fleet.plan,
        train=train,
        client=LocalClient(
            model.split,
            train,
            shards,
            config.task.batch_size,
            lambda plan: fleet.plan.at(plan.round)[plan.client].execution,
            start=config.adapter.start_sha256,
        ),
    )
    check_measured_fleet(config.method, simulation.boundaries())
    check_head(model.split, simulation.boundaries())
    # Refuse a policy that does not suit this fleet; ``for_clients`` would fill in missing costs.
    scores, cohort = simulation.scores(simulation.present(0)), config.fleet.cohort
    method.policy.marginals(scores, cohort, fleet_seed(config), 0, config.rounds)
    return simulation


def build_server(config: ExperimentConfig) -> Experiment:
    """Load and check what the server of a network run needs; writes nothing."""
    method = build_method(config)
    check_fleet(config)
    if config.evaluation.holdout or not config.evaluation.test:
        raise HoflError(
            "evaluation.holdout needs every client's data, and the server of a network run has "
            "none: set evaluation.holdout=0 and evaluation.test=true."
        )
    served, task = task_to_test(with_secret(with_start(config), "random"))
    served = served.model_copy(update={"data": config.data})
    model = model_of(served, method)
    served = started(served, model)
    return Experiment(**_served(served, method, task, model, config.fleet))


def _served(
    config: ExperimentConfig, method: Method, task: Task, model: LoadedModel, fleet: FleetConfig
) -> dict[str, Any]:
    """Return the server's part of an experiment, which a simulation shares."""
    privacy, layout = build_privacy(config.privacy), model.split.layout
    limits = UploadLimits(max_norm=config.server.max_norm, max_scalar=config.server.max_scalar)
    if privacy is not None:
        check_limits(privacy, limits, method, layout)
    test = encoded_test(config, task, model) if config.evaluation.test else None
    vectors = keeper_of(method.local.directions, layout).start()
    reproducible = config.server.secret == "seed"
    return {
        "config": resolved(config, method, model, fleet),
        "method": method,
        "model": model,
        "secret": RunSecret.from_seed(config.seed) if reproducible else RunSecret.random(),
        "start": ServerState(model.split.w.cpu().clone(), 0, vectors),
        "prompt": task.prompt(config.task.prompt),
        "test": test,
        "curve": None if test is None else curve_examples(config, task, len(test)),
        "questions": () if test is None else tuple(sample_questions(test, config.evaluation)),
        "limits": limits,
        "privacy": privacy,
        "note": task.note,
    }
