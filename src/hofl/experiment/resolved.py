"""The complete configuration of a run: what it left open, as it was settled."""

from typing import Any, Literal

import torch

from hofl.experiment.config import ExperimentConfig, MethodConfig
from hofl.experiment.fleet_config import FleetConfig
from hofl.methods import Method, options_of
from hofl.models.loading import LoadedModel
from hofl.models.sources import SOURCES
from hofl.sampling.policies import Policy, policy_spec


def resolved(
    config: ExperimentConfig, chosen: Method, model: LoadedModel, fleet: FleetConfig
) -> ExperimentConfig:
    """Return the configuration with every default filled in, so that a resume means the same."""
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
            {"targets": config.adapter.targets or split.family.lora_targets},
        ),
        "engine": (config.engine, {"threads": torch.get_num_threads()}),
    }
    update = {key: old.model_copy(update=new) for key, (old, new) in sections.items()}
    update["fleet"] = fleet
    update["method"] = MethodConfig(name=config.method.name, **options_of(chosen))
    return config.model_copy(update=update)


def with_secret(config: ExperimentConfig, unset: Literal["seed", "random"]) -> ExperimentConfig:
    """Return the configuration with the source of its secret, ``unset`` where it names none."""
    server = config.server.model_copy(update={"secret": config.server.secret or unset})
    return config.model_copy(update={"server": server})


def with_policy(config: ExperimentConfig, policy: Policy) -> ExperimentConfig:
    """Return the configuration with this sampling policy in place of its own."""
    method = config.method.model_copy(update={"policy": policy_spec(policy)})
    return config.model_copy(update={"method": method})
