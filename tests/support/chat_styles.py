"""Three styles of chat templates as real models have them, and the same texts written by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

Pieces = list[tuple[str, bool]]
"""A text in pieces, and whether each is trained."""
Turns = Sequence[tuple[str, str]]
"""(role, content) of each message."""

SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]
WORDS = "You are a helpful assistant named Ada. What is the capital of France? Paris, of course.\n"

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are Ada<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def chatml(turns: Turns) -> Pieces:
    first = (
        [] if turns[0][0] == "system" else [("<|im_start|>system\nYou are Ada<|im_end|>\n", False)]
    )
    return first + _turns(turns, "<|im_start|>{}\n", "<|im_end|>", "\n", "assistant")


def llama3(turns: Turns) -> Pieces:
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    return [("<s>", False), *_turns(turns, head, "<|eot_id|>", "", "assistant")]


def gemma(turns: Turns) -> Pieces:
    return [("<s>", False), *_turns(turns, "<start_of_turn>{}\n", "<end_of_turn>", "\n", "model")]


def _turns(turns: Turns, head: str, end: str, behind: str, name: str) -> Pieces:
    pieces: Pieces = []
    for role, content in turns:
        answer = role == "assistant"
        pieces.append((head.format(name if answer else role), False))
        pieces.append((content + end, answer))
        pieces.append((behind, False))
    return pieces


@dataclass(frozen=True)
class Style:
    """A chat template, and what it writes, by hand."""

    template: str
    by_hand: Callable[[Turns], Pieces]
    end: str
    system: bool = True


STYLES = {
    "chatml": Style(CHATML, chatml, "<|im_end|>"),
    "llama3": Style(LLAMA3, llama3, "<|eot_id|>"),
    "gemma": Style(GEMMA, gemma, "<end_of_turn>", system=False),
}


@cache
def chat_tokenizer(template: str | None = None) -> Any:
    """A byte-level BPE with all special tokens of the styles; it puts <s> before a text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([WORDS] * 5, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=SPECIAL[2:],
    )
    tokenizer.chat_template = template
    return tokenizer


def messages(turns: Turns) -> list[dict[str, str]]:
    """The turns as rows of a file have them."""
    return [{"role": role, "content": content} for role, content in turns]
