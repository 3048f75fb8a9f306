"""Texts of numbers for tiny random models: the word "17" is token 17, so every token is known."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hofl.data.encoding import EncodedSet, encode
from hofl.data.task import Answer, Example, Prompt
from support.models import VOCABULARY

END = 4  # every prompt ends in this word
NEWLINE = 96


@cache
def number_tokenizer() -> Any:
    """Token i > 2 is the word str(i); the newline is token 96, the end of a text token 2."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "\n": NEWLINE}
    vocabulary |= {str(i): i for i in range(3, NEWLINE)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def words(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def number_set(
    prompts: Sequence[Sequence[int]], answer: Answer, window: int = 64, **columns: Sequence[Any]
) -> EncodedSet:
    """Examples whose prompts are these tokens and END; ``columns`` are fields of Example."""
    examples = [
        Example({"text": words(tokens)}, **{name: column[i] for name, column in columns.items()})
        for i, tokens in enumerate(prompts)
    ]
    template = Prompt(f"{{text}} {END}", "text", answer)
    return encode(examples, template, number_tokenizer(), window, window)


def random_prompts(lengths: Sequence[int], seed: int = 8) -> tuple[tuple[int, ...], ...]:
    rng = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(5, VOCABULARY - 1, (length,), generator=rng) for length in lengths]
    return tuple(tuple(ids.tolist()) for ids in drawn)
