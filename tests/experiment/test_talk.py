"""Talking to a run's model: answers are what the trained model itself would say next."""

import io
import sys
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hofl
from hofl.data.chat import PLAIN
from support.runs import quick, run_cli

CHAT = '{"prompt": "late parcel", "completion": "delivery"}\n'


def talked(run: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, output = run_cli("chat", str(run), "--max-new-tokens", "5")
    assert code == 0, output
    return output.splitlines()


def continued(run: hofl.Result, model: Path, prompt: str, most: int = 5) -> str:
    """The most likely words after a prompt, one whole forward pass for each."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    base = AutoModelForCausalLM.from_pretrained(model)
    trained = peft.PeftModel.from_pretrained(base, run.adapter).eval()
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    start = len(ids)
    for _ in range(most):
        with torch.no_grad():
            best = int(trained(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if best == tokenizer.eos_token_id:
            break
        ids.append(best)
    return tokenizer.decode(ids[start:], skip_special_tokens=True).strip()


def test_a_prompt_with_one_field_is_filled_in(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hofl.run(quick(tiny_folder, rounds=1), tmp_path / "run")
    texts = ["the parcel is late", "my invoice"]
    expected = [continued(run, tiny_folder, f"Message: {text}\nDepartment:") for text in texts]
    assert talked(run.path, "\n".join(texts), monkeypatch) == expected


def test_a_conversation_remembers_until_it_is_started_again(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(CHAT * 12)
    own = {"train": str(file), "test": str(file)}
    config = quick(tiny_folder, rounds=1, task={"name": "chat"}, custom=own)
    run = hofl.run(config, tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)

    def said(*turns: str) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, chat_template=PLAIN, lead=""
        )
        return continued(run, tiny_folder, prompt)

    first = said("late parcel")
    second = said("late parcel", first, "my invoice")
    lines = "late parcel\nmy invoice\n/new\n\nmy invoice\n/quit\nnever read\n"
    assert talked(run.path, lines, monkeypatch) == [first, second, said("my invoice")]
