"""Shared fixtures: one thread per process, and a tiny model folder that text tasks can use."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from hofl.data.task import LabelWords
from hofl.data.tasks import load_task
from support.models import CONFIGS

torch.set_num_threads(1)  # the models are tiny, and two cores have other things to do


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-block Llama with a word-level tokenizer, as an ordinary model folder."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    task = load_task("helpdesk")
    splitter = pre_tokenizers.Whitespace()
    prompt = task.prompt()
    assert isinstance(prompt.answer, LabelWords)
    texts = [prompt.template, *prompt.answer.words]
    texts += [example.fields["text"] for example in task.train]
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "x", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = splitter
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    fields = {**CONFIGS["llama"].to_dict(), "vocab_size": len(vocabulary)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**fields))
    model.save_pretrained(folder)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly which tests had no real data to run on."""
    skipped = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if "HOFL_DATA" in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} skipped: HOFL_DATA does not name a folder with all they need:"
        )
        for name in skipped:
            terminalreporter.write_line(f"  {name}")
