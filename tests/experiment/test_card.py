"""The trained adapter: what it says of itself, who may read it, and how others load it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM

import hofl
from hofl.models.adapters import load_trained
from hofl.models.sources import SOURCES
from support.runs import quick

IDS = torch.tensor([[5, 6, 7]])


@pytest.fixture(scope="module")
def built_in(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hofl.Result]:
    """A run of a built-in model, whose fetched copy is the tiny one."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "models").mkdir()
    (cache / "models" / "smollm2-135m-instruct").symlink_to(tiny_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOFL_CACHE", str(cache))
        name = {"name": "smollm2-135m-instruct"}
        config = quick(tiny_folder, model=name, rounds=1, fleet={"seed": 9})
        yield hofl.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_the_adapter_names_the_hub_s_model_and_no_place_of_this_machine(
    built_in: hofl.Result, tiny_folder: Path
) -> None:
    config = json.loads((built_in.adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    for path in built_in.adapter.iterdir():
        data = path.read_bytes()
        assert str(tiny_folder).encode() not in data
        assert os.environ["HOFL_CACHE"].encode() not in data


def test_the_card_has_the_hub_s_header_and_the_facts_of_the_run(built_in: hofl.Result) -> None:
    """Read by the hub's own library."""
    card = ModelCard.load(built_in.adapter / "README.md")
    header = card.data.to_dict()
    assert header["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert header["library_name"] == "peft"
    assert "base_model:adapter:HuggingFaceTB/SmolLM2-135M-Instruct" in header["tags"]
    before, after = built_in.summary["initial"], built_in.summary["final"]
    for fact in (
        "| task | helpdesk |",
        "| method | hofl, q 2, mu 0.001 |",
        "| clients | 6, 3 per round, 2 steps each |",
        "| seeds | run 5, fleet 9 |",
        f"| accuracy | {before['accuracy']:.4f} | {after['accuracy']:.4f} |",
        f"hofl {hofl.__version__}, peft ",
        SOURCES["smollm2-135m-instruct"].requirement,
        "Message: {text}\nDepartment:",
    ):
        assert fact in card.text
    assert "More Information Needed" not in card.text


def test_everybody_may_read_the_adapter_whom_the_umask_lets(
    tiny_folder: Path, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        result = hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in result.adapter.iterdir()} == {0o644}


def test_the_adapter_is_loaded_without_the_network_by_hofl_and_by_peft(
    built_in: hofl.Result, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's id means the fetched copy; all three give the same scores as peft by hand."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base, str(built_in.adapter))(input_ids=IDS).logits
        for model in (built_in.load(), load_trained(built_in.adapter)):
            assert type(model).__name__ == "PeftModelForCausalLM"
            assert torch.equal(model(input_ids=IDS).logits, expected)


def test_a_folder_is_named_as_the_user_named_it(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not on the hub, so the header does not claim it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(tiny_folder)
    monkeypatch.chdir(tmp_path)
    config = quick(tiny_folder, model={"name": "models/tiny"}, rounds=1)
    result = hofl.run(config, "run")
    saved = json.loads((result.adapter / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "models/tiny"
    assert "base_model" not in ModelCard.load(result.adapter / "README.md").data.to_dict()
    AutoPeftModelForCausalLM.from_pretrained(str(result.adapter.resolve()))
    monkeypatch.chdir("/")
    hofl.Result(tmp_path / "run", {}).load()


def test_the_list_of_built_in_models_loads_no_model_library() -> None:
    code = "import sys, hofl.models.sources as s; s.cached_copy(''); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "'hofl.models.sources'" in done.stdout, done.stderr
    assert "'torch'" not in done.stdout
    assert "'transformers'" not in done.stdout
