"""A warm start: the values of a PEFT LoRA adapter in place of fresh ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file

from hofl.core.errors import HoflError
from hofl.models.split import SplitModel

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "use_rslora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "modules_to_save": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([],),
    "layer_replication": ([],),
    "init_lora_weights": (False, True, "gaussian", "orthogonal", "eva"),  # others change the model
}
"""What an adapter may say, or leave out: its parameters are A and B of one rank everywhere."""


@dataclass(frozen=True)
class LoraShape:
    """What a saved adapter says of itself.

    Args:
        rank: r.
        alpha: its scale is alpha / r.
        targets: names of the layers that have it.
        base: name of the model that it was trained on, or empty.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...]
    base: str


def adapter_folder(name: str) -> Path:
    """Return the folder of an adapter, or of the adapter in a run's folder."""
    folder = Path(name).expanduser().resolve()
    inside = folder / "adapter"
    return inside if (inside / _CONFIG).is_file() else folder


def lora_shape(folder: Path) -> LoraShape:
    """Read what kind of adapter a folder holds; refuse one that cannot be trained here."""
    values = _settings(folder)
    if values["peft_type"] != "LORA":
        raise HoflError(f"{folder} is a {values['peft_type']} adapter: only LoRA can be trained.")
    other = [key for key, plain in _PLAIN.items() if (values.get(key) or plain[0]) not in plain]
    if other:
        raise HoflError(
            f"the adapter in {folder} has {other[0]} = {values[other[0]]!r}: only plain LoRA, of "
            "one rank on the model as it is, can be trained."
        )
    targets = values["target_modules"]
    if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
        raise HoflError(
            f"the adapter in {folder} names its layers by a pattern, {targets!r}: save it with a "
            "list of names in target_modules."
        )
    base = str(values.get("base_model_name_or_path") or "")
    rank, alpha = (_whole(values, key, folder) for key in ("r", "lora_alpha"))
    return LoraShape(rank, alpha, tuple(sorted(targets)), base)


def _whole(values: dict[str, Any], key: str, folder: Path) -> int:
    """Return a positive whole number, which may be written as 16.0."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        raise HoflError(
            f"the adapter in {folder} has {key} = {value!r}: only positive whole numbers can be "
            "trained."
        )
    return int(value)


def _settings(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json, with the entries that every LoRA adapter has."""
    try:
        values = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = None
    needed = {"peft_type", "r", "lora_alpha", "target_modules"}
    whole = isinstance(values, dict) and "peft_type" in values
    if not whole or (values["peft_type"] == "LORA" and not needed <= values.keys()):
        raise HoflError(
            f"{folder} is not a PEFT adapter: it has no readable {_CONFIG}. Give the folder of "
            "one, or of a finished run."
        )
    return dict(values)


def load_start(split: SplitModel, folder: Path) -> None:
    """Load a saved adapter's values into the model's trainable parameters.

    Raises:
        HoflError: it lacks a parameter of this model, has another, or one of another shape.
    """
    assert isinstance(split.module, PeftModel), "only LoRA can be started from an adapter"
    try:
        saved = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HoflError(f"cannot read {folder / _WEIGHTS}: {reason}.") from None
    wanted = get_peft_model_state_dict(split.module, save_embedding_layers=False)
    for name in [*wanted, *saved]:
        if name not in saved or name not in wanted:
            side = "lacks" if name in wanted else "has"
            raise HoflError(
                f"the adapter in {folder} does not fit the model: it {side} {name}. Start from an "
                "adapter of this model with these adapter.targets."
            )
        got, expected = tuple(saved[name].shape), tuple(wanted[name].shape)
        if got != expected:
            raise HoflError(
                f"the adapter in {folder} does not fit the model: {name} is {got}, and the model "
                f"needs {expected}. Start from an adapter of this model."
            )
        if not saved[name].isfinite().all():
            raise HoflError(f"the adapter in {folder} is not finite in {name}.")
    set_peft_model_state_dict(split.module, saved)
