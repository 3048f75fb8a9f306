"""hofl: federated fine-tuning of language models on devices that differ in memory.

>>> from hofl import METHODS
>>> METHODS["fedavg"].summary
'backpropagation through the whole model on every device'
"""

from hofl.engines.launch import Result, resume, run
from hofl.errors import HoflError, UploadRefused
from hofl.experiment.config import (
    AdapterConfig,
    EngineConfig,
    EvaluationConfig,
    ExperimentConfig,
    FleetConfig,
    MethodConfig,
    ModelConfig,
    ServerConfig,
    TaskConfig,
    read_config,
)
from hofl.methods import METHODS, Method, method
from hofl.models.loading import load_model
from hofl.version import VERSION

__version__ = VERSION

__all__ = [
    "METHODS",
    "AdapterConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "FleetConfig",
    "HoflError",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "Result",
    "ServerConfig",
    "TaskConfig",
    "UploadRefused",
    "load_model",
    "method",
    "read_config",
    "resume",
    "run",
]
