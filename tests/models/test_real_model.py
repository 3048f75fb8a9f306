"""The real pretrained model: fetching it, the first run from Python, and that HO-FL learns."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import hofl
from hofl.data.task import LabelWords
from hofl.data.tasks import BENCHMARKS
from hofl.models.quantised import quantise
from hofl.models.sources import SOURCES, fetch, is_cached

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_built_in_model_is_fetched_and_is_a_language_model() -> None:
    """A model that was converted wrongly would not continue this as English does."""
    folder = fetch("smollm2-135m-instruct")
    assert is_cached("smollm2-135m-instruct")
    assert (folder / "model.safetensors").stat().st_size > 500e6
    loaded = hofl.load_model("smollm2-135m-instruct")
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = loaded.split.module(input_ids=ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best).strip() == "Paris"
    assert loaded.split.num_blocks == 30
    assert loaded.split.layout.size == 460_800


def test_label_words_of_every_benchmark_are_single_distinct_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(fetch("smollm2-135m-instruct"))
    for benchmark in BENCHMARKS.values():
        for prompt in benchmark.prompts.values():
            if isinstance(prompt.answer, LabelWords):
                ids = [tokenizer(f" {word}")["input_ids"] for word in prompt.answer.words]
                assert all(len(one) == 1 for one in ids), (benchmark.name, prompt)
                assert len({one[0] for one in ids}) == len(ids)


def test_an_unknown_source_names_the_known_ones() -> None:
    with pytest.raises(hofl.HoflError, match=r"no built-in model 'gpt-9': choose one of smollm2"):
        fetch("gpt-9")
    assert all(len(source.sha256) == 64 for source in SOURCES.values())


def test_the_first_run_from_python_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "python.md", "exec"), names)
    assert re.fullmatch(r"0\.\d+ -> 0\.\d+", capsys.readouterr().out.strip())
    assert type(names["model"]).__name__ == "PeftModelForCausalLM"
    assert (tmp_path / "runs" / "ten-lines" / "adapter" / "adapter_model.safetensors").is_file()


def test_ho_fl_ends_well_above_where_it_began(tmp_path: Path) -> None:
    """The demo's own configuration, three of its six rounds, scored on half of its examples."""
    scored = ["evaluation.every=0", "evaluation.examples=100"]
    config = hofl.read_config("demo", ["rounds=3", "fleet.strategy=paper", *scored])
    result = hofl.run(config, tmp_path / "run")
    before, after = result.summary["initial"], result.summary["final"]
    assert after["accuracy"] >= before["accuracy"] + 0.10
    assert after["loss"] < before["loss"] - 0.2
    assert result.summary["zo_snr"] > 1


def test_frozen_weights_are_mapped_from_the_file_and_so_shared_between_processes() -> None:
    loaded = hofl.load_model("smollm2-135m-instruct")
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f"{loaded.reference}/model.safetensors"):
            start, stop = (int(end, 16) for end in line.split()[0].split("-"))
            mapped.append(range(start, stop))
    frozen = [p for p in loaded.split.base.parameters() if not p.requires_grad]
    assert frozen
    assert all(any(p.data_ptr() in region for region in mapped) for p in frozen)


def test_the_built_in_model_loses_nothing_in_the_form_it_came_in() -> None:
    """Its file held groups of q4_1; q8_0 is coarser by half a percent of the norm."""
    blocks = hofl.load_model("smollm2-135m-instruct").split.blocks[3:5]
    whole = {p: p.clone() for b in blocks for p in b.parameters() if p.dim() == 2}
    restored = {p: read() for p, read in quantise(list(blocks), "q4_1").items()}
    assert len(restored) == 14
    assert all(torch.equal(value, whole[p]) for p, value in restored.items())
    for parameter in restored:
        parameter.data = whole[parameter]
    for parameter, read in quantise(list(blocks), "q8_0").items():
        error = (read() - whole[parameter]).norm() / whole[parameter].norm()
        assert 1e-3 < error < 1e-2
