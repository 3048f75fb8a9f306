"""Greedy decoding in batches with a key-value cache, by the model's own ``generate``."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from transformers import GenerationConfig

from hofl.core.errors import HoflError
from hofl.models.split import SplitModel


@torch.no_grad()
def greedy(
    model: SplitModel,
    prompts: Sequence[Sequence[int]],
    stops: Sequence[int],
    max_new_tokens: int,
) -> list[list[int]]:
    """Generate the continuation of each prompt, up to and without the first stop token.

    Args:
        model: at its current parameters.
        prompts: token ids; they may differ in length.
        stops: token ids that end a continuation.
        max_new_tokens: most tokens of a continuation.
    """
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    real = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):  # padded on the left: all answers start together
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        real[row, longest - len(prompt) :] = 1
    settings = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stops),
        pad_token_id=stops[0],
    )
    # Whatever is not set would be filled in from the model's own settings, such as penalties for
    # repetition: greedy decoding has none.
    saved, model.base.generation_config = model.base.generation_config, settings
    try:
        # A backbone that is stored small computes in the run's precision here too.
        with model.computing(model.module):
            generated = model.base.generate(
                input_ids=ids.to(model.device),
                attention_mask=real.to(model.device),
                generation_config=settings,
            )
    finally:
        model.base.generation_config = saved
    return [_until(row, set(stops)) for row in generated[:, longest:].tolist()]


def _until(tokens: list[int], stops: set[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[:place]
    return tokens


@lru_cache(maxsize=4)
def stop_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the end-of-text token and every token that holds a newline."""
    pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    newlines = [token for token, piece in enumerate(pieces) if "\n" in piece]
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if not ends and not newlines:
        raise HoflError(
            "the tokenizer has neither an end-of-text token nor a newline, so generation could not "
            "stop. Use another model for tasks with free-text answers."
        )
    return tuple(dict.fromkeys([*ends, *newlines]))
