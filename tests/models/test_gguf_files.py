"""A GGUF file as the name of a model: converted once, with the same weights and tokenizer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM

from hofl.core.errors import HoflError
from hofl.models.loading import load_model, resolve_reference
from support.models import BLOCKS, CONFIGS, VOCABULARY, batch, slot_logits

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, architecture: str = "llama") -> AutoModelForCausalLM:
    """Write a random Llama as llama.cpp's converter does: names, and rotary halves interleaved."""
    config = CONFIGS["llama"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    words = ["<unk>", "<s>", "</s>", *(f"\u2581w{i}" for i in range(VOCABULARY - 3))]
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(VOCABULARY)])
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * (VOCABULARY - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if part in name:
                values = interleaved(values, count)
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return rows.swapaxes(1, 2).reshape(weight.shape)


def test_a_gguf_file_is_a_model_with_its_weights(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    whole, data = write(path), batch(0)
    loaded = load_model(str(path), device="cpu")
    model, inputs = loaded.split, loaded.split.inputs(data.texts)
    with torch.no_grad():
        found = model.head(model.forward(inputs.hidden, inputs, 0, BLOCKS), data).words(
            data.goal.candidates
        )
        expected = slot_logits(whole, data)[:, data.goal.candidates]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert loaded.tokenizer.eos_token_id == 2


def test_it_is_converted_once_and_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(path)
    folder = Path(resolve_reference(str(path)))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_reference(str(path)) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    path.touch()
    assert resolve_reference(str(path)) != str(folder)
    assert not list((cache / "models").glob(".fetch-*"))


def test_what_a_killed_conversion_left_is_removed_and_one_at_work_is_not(
    tmp_path: Path, cache: Path
) -> None:
    """The folders of two processes, stopped where they convert; one of them is killed there."""
    path = tmp_path / "tiny.gguf"
    write(path)
    code = (
        "import sys, time; from pathlib import Path; from hofl.models import sources\n"
        "def convert(gguf, target):\n"
        "    (target.parent / 'half').write_text('half'); print(target.parent, flush=True)\n"
        "    time.sleep(600)\n"
        "sources._convert = convert\n"
        "sources.converted(Path(sys.argv[1]))"
    )
    words = [sys.executable, "-c", code, str(path)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as at_work,
    ):
        try:
            left, used = (Path(p.stdout.readline().strip()) for p in (killed, at_work))
            killed.kill()
            killed.wait()
            assert (left / "half").exists()
            resolve_reference(str(path))
            assert not left.exists()
            assert (used / "half").exists()
        finally:
            killed.kill()
            at_work.kill()


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"GGUF\x03\x00\x00\x00"])
def test_a_broken_file_is_one_line(content: bytes, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(HoflError, match=r"cannot convert .*bad\.gguf") as caught:
        resolve_reference(str(tmp_path / "bad.gguf"))
    assert "\n" not in str(caught.value)
    assert [path.name for path in (cache / "models").iterdir()] == [".lock"]


def test_another_kind_of_model_is_one_line(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "other.gguf", architecture="clip")
    with pytest.raises(HoflError, match=r"cannot convert .*other\.gguf") as caught:
        load_model(str(tmp_path / "other.gguf"))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_not_taken_for_a_hub_id() -> None:
    with pytest.raises(HoflError, match="no such"):
        resolve_reference("nowhere.gguf")
