"""The paper's setting (section 5.1 and appendix C): models, tiers, tasks, methods.

The paper names seed 42 for its single-seed table and does not name the other two: 42, 43 and 44 are
this project's choice. It does not state its prompts either: those of ``hofl.data.tasks`` are used.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hofl.experiment.config import ExperimentConfig, parse_config

SEEDS = (42, 43, 44)
PER_CLIENT = 4000
"""Examples of a client under label skew, so that clients do not differ in size."""


@dataclass(frozen=True)
class PaperModel:
    """A model of the paper.

    Args:
        hub: its Hugging Face id.
        blocks: L.
        tiers: boundaries of the three tiers.
        block_weights: frozen weights of one block.
    """

    hub: str
    blocks: int
    tiers: tuple[int, int, int]
    block_weights: int

    @property
    def shares(self) -> tuple[float, ...]:
        """The tiers as shares of the blocks, for another model."""
        return tuple(tier / self.blocks for tier in self.tiers)

    @property
    def architecture(self) -> str:
        """Folder of its configuration: enough to plan memory, without weights or a network."""
        folder = Path(__file__).parent / "architectures"
        return str(folder / self.hub.rpartition("/")[2].lower())


MODELS = {
    "OPT-125M": PaperModel("facebook/opt-125m", 12, (3, 6, 9), 7_087_872),
    "Qwen2.5-1.5B": PaperModel("Qwen/Qwen2.5-1.5B", 28, (8, 16, 24), 46_797_824),
    "SmolLM3-3B": PaperModel("HuggingFaceTB/SmolLM3-3B", 36, (9, 18, 27), 78_123_008),
}
TASKS: dict[str, dict[str, Any]] = {
    "SST-2": {"name": "sst2"},
    "BoolQ": {"name": "boolq"},
    "SciQ": {"name": "sciq"},
    "AG News": {"name": "ag_news"},
    "SQuAD": {"name": "squad", "max_length": 512},
}
METHODS: dict[str, tuple[str, ...]] = {
    "FedAvg": ("method.name=fedavg",),
    "FedProx": ("method.name=fedprox", "method.proximal=1e-3"),
    "DeComFL": ("method.name=decomfl",),
    "HO-FL (beta = 0)": ("method.name=hofl", "method.policy.beta=0.0"),
    "HO-FL (beta = 0.75)": ("method.name=hofl", "method.policy.beta=0.75"),
}
"""Column of the paper's tables -> changes to a setting."""


def setting(model: str, task: str, alpha: float | None = None) -> ExperimentConfig:
    """Return the configuration that the runs of a model and a task have in common.

    Args:
        model: a key of ``MODELS``.
        task: a key of ``TASKS``.
        alpha: of the Dirichlet split; None is IID.
    """
    chosen = MODELS[model]
    data: dict[str, Any] = {"partition": "iid"}
    if alpha is not None:
        data = {"partition": "dirichlet", "alpha": alpha, "per_client": PER_CLIENT}
    return parse_config(
        {
            "name": f"{model}, {task}",
            "seed": SEEDS[0],
            "rounds": 160,
            "model": {
                "name": chosen.hub,
                "storage_dtype": "bfloat16",
                "compute_dtype": "bfloat16",
            },
            "adapter": {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]},
            "task": {**TASKS[task], "batch_size": 16},
            "data": data,
            "fleet": {"clients": 30, "cohort": 6, "boundaries": list(chosen.tiers)},
            "method": {
                "name": "hofl",
                "local_steps": 5,
                "q": 2,
                "mu": 1e-3,
                "optimizer": {
                    "name": "adamw",
                    "lr": 1e-5,
                    "weight_decay": 5e-4,
                    "beta1": 0.9,
                    "beta2": 0.999,
                    "eps": 1e-8,
                },
            },
        }
    )
