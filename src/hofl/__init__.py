"""hofl: federated fine-tuning of language models on devices that differ in memory.

The names below are loaded when first used: the server's modules and the sampling maths can be
imported without loading the model libraries.

>>> from hofl import METHODS
>>> METHODS["fedavg"].summary
'backpropagation through the whole model on every device'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hofl.core.imports import collector_at_rest
from hofl.core.version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from hofl.comparing.schedule import compare
    from hofl.core.errors import HoflError, UploadRefused
    from hofl.experiment.callbacks import BestCheckpoint, EarlyStopping, ProgressBar
    from hofl.experiment.check import check
    from hofl.experiment.config import (
        AdapterConfig,
        EngineConfig,
        EvaluationConfig,
        ExperimentConfig,
        MethodConfig,
        ModelConfig,
        PrivacyConfig,
        ServerConfig,
        TrackingConfig,
        read_config,
    )
    from hofl.experiment.data_config import CustomConfig, DataConfig, TaskConfig
    from hofl.experiment.events import Callback, StopTraining
    from hofl.experiment.fleet_config import FleetConfig
    from hofl.experiment.handover import with_data
    from hofl.experiment.launch import resume, run
    from hofl.experiment.result import Result
    from hofl.experiment.scoring import config_of, evaluate
    from hofl.memory.advice import plan
    from hofl.methods import METHODS, Method, method
    from hofl.models.loading import load_model
    from hofl.reporting.html import report

_HOMES = {
    "hofl.comparing.schedule": ("compare",),
    "hofl.experiment.launch": ("resume", "run"),
    "hofl.experiment.result": ("Result",),
    "hofl.core.errors": ("HoflError", "UploadRefused"),
    "hofl.experiment.callbacks": ("BestCheckpoint", "EarlyStopping", "ProgressBar"),
    "hofl.experiment.check": ("check",),
    "hofl.experiment.events": ("Callback", "StopTraining"),
    "hofl.experiment.config": (
        "AdapterConfig",
        "EngineConfig",
        "EvaluationConfig",
        "ExperimentConfig",
        "FleetConfig",
        "MethodConfig",
        "ModelConfig",
        "PrivacyConfig",
        "ServerConfig",
        "TrackingConfig",
        "read_config",
    ),
    "hofl.experiment.data_config": ("CustomConfig", "DataConfig", "TaskConfig"),
    "hofl.experiment.handover": ("with_data",),
    "hofl.experiment.scoring": ("config_of", "evaluate"),
    "hofl.memory.advice": ("plan",),
    "hofl.methods": ("METHODS", "Method", "method"),
    "hofl.models.loading": ("load_model",),
    "hofl.reporting.html": ("report",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "METHODS",
    "AdapterConfig",
    "BestCheckpoint",
    "Callback",
    "CustomConfig",
    "DataConfig",
    "EarlyStopping",
    "EngineConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "FleetConfig",
    "HoflError",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "PrivacyConfig",
    "ProgressBar",
    "Result",
    "ServerConfig",
    "StopTraining",
    "TaskConfig",
    "TrackingConfig",
    "UploadRefused",
    "__version__",
    "check",
    "compare",
    "config_of",
    "evaluate",
    "load_model",
    "method",
    "plan",
    "read_config",
    "report",
    "resume",
    "run",
    "with_data",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hofl' has no attribute {name!r}")
    with collector_at_rest():
        home = import_module(_HOME_OF[name])
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
