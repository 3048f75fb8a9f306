"""Names that are no model and devices that are not here: one line that says which it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hofl.core.errors import HoflError
from hofl.models.loading import resolve_device, resolve_reference


@pytest.mark.parametrize("name", ["./nowhere", "../nowhere", "/nowhere", "~/nowhere", "a/b/c"])
def test_a_path_without_a_folder_is_not_taken_for_a_hub_id(name: str) -> None:
    with pytest.raises(HoflError, match="no such folder") as refusal:
        resolve_reference(name)
    assert repr(name) in str(refusal.value)
    assert "repo" not in str(refusal.value).lower()


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    with pytest.raises(HoflError, match="a file, not a folder"):
        resolve_reference(str(tmp_path / "model"))


def test_folders_and_hub_ids_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "./tiny", "~/tiny", str(tmp_path / "tiny")):
        assert resolve_reference(name) == str(tmp_path / "tiny")
    assert resolve_reference("Qwen/Qwen2.5-1.5B") == "Qwen/Qwen2.5-1.5B"
    assert resolve_reference("gpt2") == "gpt2"


def test_cuda_without_a_gpu_is_said_to_be_missing() -> None:
    """In a process that sees no GPU, on any machine."""
    code = "from hofl.models.loading import resolve_device; resolve_device('cuda:1')"
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=hidden)
    assert "device 'cuda:1': CUDA is not available on this machine" in done.stderr


@pytest.mark.parametrize("name", ["gpu", "xpu", "cuda:x", "meta", ""])
def test_what_is_not_a_device_gets_the_list_of_those_that_are(name: str) -> None:
    with pytest.raises(HoflError, match="is not a device: use auto, cpu, cuda, cuda:1 or mps"):
        resolve_device(name)


def test_a_device_beyond_the_last_is_refused_with_their_number() -> None:
    with pytest.raises(HoflError, match="'cpu:3': this machine has 1, counted from 0"):
        resolve_device("cpu:3")
    assert resolve_device("cpu") == torch.device("cpu")
