"""From a model's name to a split model and its tokenizer.

A name is a built-in model (``hofl models``), a local Hugging Face folder, a GGUF file or a hub id.
Weights in safetensors files are memory-mapped by ``transformers``, so several processes on one
machine share one copy of the frozen backbone, as long as it is stored in the dtype of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hofl.core.errors import HoflError
from hofl.core.process import footprint_before_models
from hofl.models.adapters import FullBlocks, Lora, SurrogateParameters, lora_start
from hofl.models.agreement import check_agreement
from hofl.models.families import FAMILIES, family_of
from hofl.models.files import (
    ONE_AT_A_TIME,
    block_readers,
    model_of_config,
    model_without_blocks,
    stored_tensors,
)
from hofl.models.quantised import FORMS, quantise
from hofl.models.sources import SOURCES, converted, fetch
from hofl.models.split import SplitModel

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
MakeSurrogateParameters = Callable[[Any], SurrogateParameters | None]
"""A Hugging Face configuration -> parameters that a surrogate trains beside the model's."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A split model with its tokenizer.

    Args:
        split: the model in blocks.
        tokenizer: None where the folder has none.
        reference: the folder or hub id that it was loaded from.
        name: as the user named it.
    """

    split: SplitModel
    tokenizer: Any
    reference: str
    name: str


def resolve_device(name: str) -> torch.device:
    """Return a device by name; ``auto`` prefers CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in _DEVICES:
        raise HoflError(f"{name!r} is not a device: use auto, cpu, cuda, cuda:1 or mps.")
    count = _DEVICES[device.type]()
    if not count:
        raise HoflError(
            f"device {name!r}: {device.type.upper()} is not available on this machine, or this "
            "PyTorch was built without it. Use auto or cpu."
        )
    if (device.index or 0) >= count:
        raise HoflError(f"device {name!r}: this machine has {count}, counted from 0.")
    return device


_DEVICES: dict[str, Callable[[], int]] = {
    "cpu": lambda: 1,
    "cuda": lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "mps": lambda: int(torch.backends.mps.is_available()),
}
"""How many devices of each kind this machine has."""


def resolve_reference(name: str) -> str:
    """Return the folder of a model, fetched or converted if need be, or its hub id as it is."""
    if name in SOURCES:
        return str(fetch(name))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if folder.suffix == ".gguf" and folder.is_file():
        return str(converted(folder))
    if (
        name.startswith((".", "~"))
        or folder.is_absolute()
        or name.count("/") > 1
        or folder.suffix == ".gguf"
    ):
        kind = "a file, not a folder" if folder.exists() else "no such folder or file"
        raise HoflError(
            f"cannot load model {name!r}: {kind}. Name a folder with config.json, a GGUF file, "
            f"a built-in model ({', '.join(SOURCES)}) or a Hugging Face id."
        )
    return name


def read_model_config(name: str) -> Any:
    """Return the Hugging Face configuration of a model, without its weights."""
    return _read(AutoConfig, name, resolve_reference(name))


def load_model(
    name: str,
    *,
    adapter: Lora | FullBlocks | None = None,
    seed: int = 0,
    weights: str = "pretrained",
    storage_dtype: str = "float32",
    compute_dtype: str = "auto",
    device: str = "auto",
    stream: bool = False,
    surrogate: MakeSurrogateParameters | None = None,
) -> LoadedModel:
    """Load a model, attach what is trained, and split it into blocks.

    Args:
        name: built-in model, folder or hub id.
        adapter: LoRA (default) or full blocks.
        seed: of LoRA's A matrices at the start, and of random weights.
        weights: ``pretrained``, or ``random`` to build from the configuration alone.
        storage_dtype: dtype of the frozen backbone in memory, or the form that its blocks are
            quantised to.
        compute_dtype: dtype of the arithmetic; ``auto`` is float32: the CPU only emulates
            bfloat16, and finite differences need the precision on every device.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        stream: leave the blocks' weights in their files until :meth:`SplitModel.keep` loads them.
        surrogate: makes a surrogate's trainable parameters from the model's configuration.
    """
    footprint_before_models()  # what is taken from here on belongs to models
    reference = resolve_reference(name)
    config, tokenizer = read_model_config(name), load_tokenizer(reference)
    split = build_split(
        config,
        reference if weights == "pretrained" else None,
        adapter=adapter or Lora(),
        seed=seed,
        storage_dtype=DTYPES.get(storage_dtype, torch.float32),
        form=storage_dtype if storage_dtype in FORMS else None,
        compute_dtype=DTYPES["float32" if compute_dtype == "auto" else compute_dtype],
        device=resolve_device(device),
        stream=stream,
        surrogate=None if surrogate is None else surrogate(config),
    )
    if config.model_type not in FAMILIES:
        check_agreement(split)
    return LoadedModel(split, tokenizer, reference, name)


def build_split(
    config: Any,
    reference: str | None,
    *,
    adapter: Lora | FullBlocks,
    seed: int = 0,
    storage_dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    form: str | None = None,
    stream: bool = False,
    surrogate: SurrogateParameters | None = None,
) -> SplitModel:
    """Build a split model from a configuration, with weights from ``reference`` or random ones."""
    device = device or torch.device("cpu")
    stored = {} if reference is None else stored_tensors(reference)
    _check_storage(adapter, form, stream, bool(stored))
    if stream:
        model = model_without_blocks(config, stored, storage_dtype, device)
    elif reference is not None:
        model = _load_weights(reference, storage_dtype).to(device)
    else:
        model = _random_weights(config, storage_dtype, seed).to(device)
    model.requires_grad_(False)
    family = family_of(model)
    on_disk = block_readers(model, family, stored, storage_dtype, device)
    module = adapter.attach(model, family)
    if isinstance(adapter, FullBlocks):
        return SplitModel(module, family, compute_dtype, surrogate=surrogate)
    if form:
        away = quantise(family.blocks_of(model), form)
        split = SplitModel(module, family, compute_dtype, away=away, surrogate=surrogate)
    else:
        split = SplitModel(module, family, compute_dtype, on_disk, surrogate=surrogate)
    split.load(lora_start(split.layout, seed, split.surrogate))
    if stream:
        split.keep(split.num_blocks)
    return split


def _check_storage(adapter: Lora | FullBlocks, form: str | None, stream: bool, files: bool) -> None:
    full = isinstance(adapter, FullBlocks)
    if form and (stream or full):
        raise HoflError(
            f"model.storage_dtype={form} keeps frozen block weights in memory: use LoRA and "
            "engine.stream_bottom=false, or another storage_dtype."
        )
    if stream and (full or not files):
        raise HoflError(
            "only frozen weights in safetensors files can be streamed: use LoRA and "
            "model.weights=pretrained, or set engine.stream_bottom=false."
        )


def _random_weights(config: Any, dtype: torch.dtype, seed: int) -> Any:
    # transformers initialises from the global RNG
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        return model_of_config(config, dtype)


def _load_weights(reference: str, dtype: torch.dtype) -> Any:
    """Load every weight from the files; refuse missing ones, which would be drawn at random."""
    with ONE_AT_A_TIME:
        model, report = _read(
            AutoModelForCausalLM, reference, reference, dtype=dtype, output_loading_info=True
        )
    missing = sorted(report["missing_keys"]) or sorted(str(k) for k in report["mismatched_keys"])
    if missing:
        raise HoflError(
            f"the weights in {reference} are incomplete: {missing[0]} and {len(missing) - 1} more "
            "are missing or have another shape. Get the model again."
        )
    return model


def _read(kind: Any, name: str, reference: str, **options: Any) -> Any:
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return kind.from_pretrained(reference, **options)
    except Exception as error:  # whatever a loader raises is about the files it was given
        place = "" if Path(reference).is_dir() else "not a folder here, and as a Hugging Face id: "
        raise HoflError(
            f"cannot load model {name!r}: {place}{_first_line(error)} Name a built-in model "
            f"({', '.join(SOURCES)}), a folder with config.json, or a Hugging Face id."
        ) from None


def load_tokenizer(reference: str) -> Any:
    """Load the tokenizer of a folder or hub id; None where the folder has none."""
    try:
        return AutoTokenizer.from_pretrained(reference)
    except Exception as error:
        if any((Path(reference) / name).exists() for name in _TOKENIZER_FILES):
            raise HoflError(
                f"cannot load the tokenizer in {reference}: {_first_line(error)}"
            ) from None
        return None  # a bare configuration; tasks that need a tokenizer refuse it


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
