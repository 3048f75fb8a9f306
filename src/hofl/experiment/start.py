"""The adapter that a run starts from (``adapter.start``), and the hash by which devices know it."""

import logging
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.experiment.config import ExperimentConfig
from hofl.messages import vector_hash
from hofl.models.loading import LoadedModel
from hofl.models.sources import SOURCES
from hofl.models.start import adapter_folder, load_start, lora_shape

log = logging.getLogger("hofl")


def with_start(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration with rank, alpha and targets of the adapter that it starts from.

    Raises:
        HoflError: the adapter cannot be trained, or the configuration asks for another kind.
    """
    section = config.adapter
    if section.start is None:
        return config
    if section.kind != "lora":
        raise HoflError("adapter.start is a LoRA adapter: set adapter.kind=lora.")
    folder = adapter_folder(section.start)
    shape = lora_shape(folder)
    shape_keys = {"rank": shape.rank, "alpha": shape.alpha, "targets": shape.targets}
    for key, value in shape_keys.items():
        asked = getattr(section, key)
        asked = tuple(sorted(asked)) if key == "targets" else asked
        if asked and key in section.model_fields_set and asked != value:
            raise HoflError(
                f"adapter.{key} is {_shown(asked)}, and the adapter in {folder} has "
                f"{_shown(value)}: remove adapter.{key}, or start from another adapter."
            )
    _note_base(config, folder, shape.base)
    return config.model_copy(
        update={"adapter": section.model_copy(update={**shape_keys, "start": str(folder)})}
    )


def started(config: ExperimentConfig, model: LoadedModel) -> ExperimentConfig:
    """Load the adapter that a run starts from; return the configuration with the hash of w_0.

    Raises:
        HoflError: it does not fit the model, or is not the one that the run was started from.
    """
    section = config.adapter
    if section.start is None:
        return config
    load_start(model.split, Path(section.start))
    digest = vector_hash(model.split.w)
    if section.start_sha256 not in (None, digest):
        raise HoflError(
            f"the adapter in {section.start} is not the one that this run starts from: its values "
            f"have SHA-256 {digest[:12]}..., expected {section.start_sha256[:12]}.... Restore it."
        )
    return config.model_copy(
        update={"adapter": section.model_copy(update={"start_sha256": digest})}
    )


def _note_base(config: ExperimentConfig, folder: Path, base: str) -> None:
    """Say so where an adapter names another model; that alone does not decide whether it fits."""
    name = config.model.name
    known = {name, SOURCES[name].hub} if name in SOURCES else {name}
    if base and Path(base).name.lower() not in {Path(each).name.lower() for each in known}:
        log.warning(
            "note: the adapter in %s was trained on %s, this run uses %s.", folder, base, name
        )


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
