"""From a model's name to a split model and its tokenizer.

A name is a built-in source (``hofl models``), a local Hugging Face folder, or a hub id. Weights in
safetensors files are memory-mapped by ``transformers``, so several processes on one machine share
one copy of the frozen backbone, as long as it is stored in the dtype of the file.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hofl.errors import HoflError
from hofl.models.adapters import FullBlocks, Lora, lora_start
from hofl.models.families import family_of
from hofl.models.files import stored_tensors
from hofl.models.quantised import FORMS, quantise
from hofl.models.sources import SOURCES, fetch
from hofl.models.split import SplitModel
from hofl.models.streaming import block_readers, model_without_blocks

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A split model with its tokenizer and the reference it was loaded from."""

    split: SplitModel
    tokenizer: Any
    reference: str


def resolve_device(name: str) -> torch.device:
    """``auto`` prefers CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        usable = False
    else:
        usable = device.type in ("cpu", "cuda", "mps")
    if not usable:
        raise HoflError(f"device {name!r} is not usable here: use auto, cpu, cuda or mps.")
    return device


def resolve_reference(name: str) -> str:
    """Folder of a built-in model (fetched if need be), the folder given, or the hub id."""
    if name in SOURCES:
        return str(fetch(name))
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def read_model_config(name: str) -> Any:
    """The Hugging Face configuration of a model, without its weights."""
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
) -> LoadedModel:
    """Load a model, attach what is trained, and split it into blocks.

    Args:
        name: built-in source, folder or hub id.
        adapter: LoRA (default) or full blocks.
        seed: start of LoRA's A matrices, and of random weights.
        weights: ``pretrained``, or ``random`` to build from the configuration alone.
        storage_dtype: dtype of the frozen backbone in memory, or the form in which its blocks are
            quantised.
        compute_dtype: dtype of the arithmetic; ``auto`` is float32 on the CPU (which only emulates
            bfloat16) and for the finite differences' sake everywhere else too.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        stream: leave the blocks' weights in their files until :meth:`SplitModel.keep` wants them.
    """
    reference = resolve_reference(name)
    config, tokenizer = read_model_config(name), _tokenizer(reference)
    return LoadedModel(
        build_split(
            config,
            reference if weights == "pretrained" else None,
            adapter=adapter or Lora(),
            seed=seed,
            storage_dtype=DTYPES.get(storage_dtype, torch.float32),
            form=storage_dtype if storage_dtype in FORMS else None,
            compute_dtype=DTYPES["float32" if compute_dtype == "auto" else compute_dtype],
            device=resolve_device(device),
            stream=stream,
        ),
        tokenizer,
        reference,
    )


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
) -> SplitModel:
    """A split model from a configuration, with weights from ``reference`` or random ones."""
    family, device = family_of(config), device or torch.device("cpu")
    stored = {} if reference is None else stored_tensors(reference)
    _check_storage(adapter, form, stream, bool(stored))
    if stream:
        model = model_without_blocks(config, family, stored, storage_dtype, device)
    elif reference is not None:
        model = _load_weights(reference, storage_dtype).to(device)
    else:
        model = _random_weights(config, storage_dtype, seed).to(device)
    model.requires_grad_(False)
    on_disk = block_readers(model, family, stored, storage_dtype, device)
    module = adapter.attach(model, family)
    if isinstance(adapter, FullBlocks):
        return SplitModel(module, family, compute_dtype)
    if form:
        away = quantise(family.blocks_of(model), form)
        split = SplitModel(module, family, compute_dtype, away=away)
    else:
        split = SplitModel(module, family, compute_dtype, on_disk)
    split.load(lora_start(split.layout, seed))
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
    with torch.random.fork_rng(devices=[]):  # transformers initialises from the global RNG
        torch.random.manual_seed(seed)
        return AutoModelForCausalLM.from_config(deepcopy(config), dtype=dtype)


def _load_weights(reference: str, dtype: torch.dtype) -> Any:
    """The model with every weight from its files: a missing one would be drawn at random."""
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
        raise HoflError(
            f"cannot load model {name!r}: {_first_line(error)} Name a built-in model "
            f"({', '.join(SOURCES)}), a folder with config.json, or a Hugging Face id."
        ) from None


def _tokenizer(reference: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(reference)
    except Exception as error:
        if any((Path(reference) / name).exists() for name in _TOKENIZER_FILES):
            raise HoflError(
                f"cannot load the tokenizer in {reference}: {_first_line(error)}"
            ) from None
        return None  # a bare configuration; tasks that need text say so


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
