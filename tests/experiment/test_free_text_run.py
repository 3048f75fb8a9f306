"""Runs on conversations and documents: every bottom rule, natural clients, the check, the card."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.build import build_simulation
from hofl.experiment.check import check
from hofl.experiment.config import parse_config
from support.runs import quick, run_cli

SAID = ("my parcel is late", "the invoice is wrong", "it works\nagain", "please refund the card")


def chat_file(path: Path, rows: int = 16) -> Path:
    lines = [
        {
            "instruction": f"{SAID[n % 4]} {SAID[n % 3]}",
            "response": f"{SAID[(n + 1) % 4]}\n\n{SAID[n % 2]}",
            "who": f"client {n % 3}",
        }
        for n in range(rows)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def text_file(path: Path, rows: int = 24) -> Path:
    lines = [{"text": " ".join(SAID[: n % 4 + 1]), "who": f"client {n % 3}"} for n in range(rows)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def config_of(
    folder: Path,
    path: Path,
    name: str,
    method: dict[str, Any],
    max_length: int = 18,
    **changes: Any,
) -> hofl.ExperimentConfig:
    custom = {"train": str(path), "test": str(path), "client_column": "who"}
    changes["evaluation"] = {"samples": 0, **changes.get("evaluation", {})}
    return quick(
        folder,
        rounds=2,
        task={"name": name, "batch_size": 2, "max_length": max_length},
        custom=custom,
        fleet={"clients": 3, "cohort": 2},
        method=method,
        **changes,
    )


FILES = {"chat": chat_file, "text": text_file}
METHODS: dict[str, dict[str, Any]] = {
    "hybrid": {"name": "hofl"},
    "exact": {"name": "hofl", "bottom": "recompute"},
    "frozen": {"name": "frozen-bottom"},
    "backpropagation": {"name": "fedavg"},
    "end to end": {"name": "hosl"},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_conversations_and_documents(
    name: str, method: str, tiny_folder: Path, tmp_path: Path
) -> None:
    path = FILES[name](tmp_path / "data.jsonl")
    config = config_of(tiny_folder, path, name, METHODS[method])
    result = hofl.run(config, tmp_path / "run")
    before, after = result.summary["initial"], result.summary["final"]
    assert after["perplexity"] < before["perplexity"]
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]), rel=1e-12)
    assert 0 <= after["token_accuracy"] <= 1
    card = (result.adapter / "README.md").read_text()
    assert "| perplexity |" in card
    if method == "hybrid":
        code, output = run_cli("evaluate", "--run", str(result.path))
        assert code == 0, output
        shown = output.replace("\n", " ")
        assert f"token accuracy {100 * after['token_accuracy']:.2f} %" in shown
        assert f"perplexity {after['perplexity']:.4f}" in shown


def test_perplexity_equals_a_slow_loop_over_the_models_whole_logits(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """One conversation and one token at a time, from the text that the plain template writes."""
    path = chat_file(tmp_path / "data.jsonl", 7)
    config = config_of(
        tiny_folder, path, "chat", METHODS["frozen"], 60, evaluation={"batch_size": 3}
    )
    found = hofl.evaluate(config)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    losses, right = [], []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        ids = tokenizer(f"User: {row['instruction']}\nAssistant:", add_special_tokens=False)
        read = ids["input_ids"]
        answer = tokenizer(f" {row['response']}</s>", add_special_tokens=False)["input_ids"]
        for token in answer:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([read])).logits[0, -1].double()
            losses.append(-logits.log_softmax(0)[token].item())
            right.append(logits.argmax().item() == token)
            read = [*read, token]
    assert found["tokens"] == len(losses)
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert found["token_accuracy"] == np.mean(right)


def test_held_out_scores_are_over_tokens_within_and_over_clients(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path = text_file(tmp_path / "data.jsonl")
    config = config_of(
        tiny_folder, path, "text", METHODS["exact"], evaluation={"holdout": 0.4, "test": False}
    )
    scores = hofl.run(config, tmp_path / "run").summary["final"]
    clients = scores["clients"]
    tokens, losses = np.array(clients["each"]["tokens"]), np.array(clients["each"]["loss"])
    assert len(tokens) == 3
    assert len(set(tokens)) > 1, "clients of different sizes"
    assert clients["each"]["perplexity"] == pytest.approx(np.exp(losses).tolist())
    pooled = (tokens * losses).sum() / tokens.sum()
    assert clients["pooled"]["perplexity"] == pytest.approx(math.exp(pooled))
    assert scores["loss"] == pytest.approx(losses.mean())
    assert scores["perplexity"] == pytest.approx(math.exp(losses.mean()))


def test_no_window_holds_text_of_two_clients_or_of_both_sides_of_a_split(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Each client has a word of its own; held-out documents are packed apart."""
    path = tmp_path / "data.jsonl"
    own = {"a": "parcel", "b": "invoice", "c": "refund"}
    rows = [{"who": who, "text": own[who]} for who in "abcabcabcabc"]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = config_of(tiny_folder, path, "text", METHODS["exact"], evaluation={"holdout": 0.5})
    simulation = build_simulation(config)
    tokenizer, train = simulation.train.tokenizer, simulation.train
    assert simulation.held_out is not None
    seen = []
    for kept, held in zip(simulation.client._shards, simulation.held_out.rows, strict=True):
        words = [
            {token for row in rows for token in train.encoded(int(row)).lines[0].targets}
            for rows in (kept, held)
        ]
        assert words[0] == words[1]
        seen.append(words[0] - {tokenizer.eos_token_id})
        assert not set(kept) & set(held)
    assert [tokenizer.decode(list(words)) for words in seen] == list(own.values())


def test_check_shows_two_conversations_with_their_trained_tokens(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path = chat_file(tmp_path / "data.jsonl")
    report = check(config_of(tiny_folder, path, "chat", METHODS["hybrid"]))
    assert len(report.rendered) == 2
    for (text, marks), answer in zip(report.rendered, SAID[1:], strict=False):
        assert not text[1]
        assert marks[1]
        assert marks[0].split()[:2] == answer.split()[:2]
    facts = report.sets["train"]
    assert facts.longest == 18
    assert facts.cut_tokens >= facts.cut > 0


def test_a_lean_execution_learns_what_a_plain_one_does(tiny_folder: Path, tmp_path: Path) -> None:
    path = chat_file(tmp_path / "data.jsonl")
    lean = {"micro_batch": 1, "checkpoint": 1, "stream_bottom": True}
    losses = [
        hofl.run(
            config_of(tiny_folder, path, "chat", METHODS["exact"], engine=engine),
            tmp_path / f"run-{len(engine)}",
        ).summary["final"]["loss"]
        for engine in ({}, lean, {"micro_tokens": 20})
    ]
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "custom", "reason"),
    [
        ("chat", {"template": "{x}:"}, "task 'chat' does not read custom.template"),
        ("text", {"prompt_column": "x"}, "task 'text' does not read custom.prompt_column"),
        ("custom", {}, 'task "custom" needs custom.template and custom.cut'),
        ("sst2", {}, 'task.name = "custom" or "chat" or "text", and a section'),
    ],
)
def test_keys_that_a_task_does_not_read_are_refused(
    name: str, custom: dict[str, str], reason: str, tiny_folder: Path, tmp_path: Path
) -> None:
    path = chat_file(tmp_path / "data.jsonl")
    config = config_of(tiny_folder, path, name, METHODS["hybrid"])
    assert config.custom is not None
    changed = config.model_copy(update={"custom": config.custom.model_copy(update=custom)})
    with pytest.raises(HoflError) as caught:
        hofl.check(changed)
    assert reason in str(caught.value)


def test_the_documented_configuration_is_accepted() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    _, documented = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    config = parse_config(tomllib.loads(documented))
    assert config.task.name == "chat"
    assert config.custom is not None
    assert config.custom.template is None
