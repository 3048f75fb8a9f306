"""Oracle: label words scored one prompt at a time by the peft model's whole vocabulary head."""

import math

import torch

from hofl.models.split import SplitModel
from support.models import VOCABULARY
from support.number_texts import END, random_prompts

WORDS = (40, 11, 77, 23)
LENGTHS = (9, 3, 14, 1, 12, 6, 14, 2, 10, 7, 5)


def prompts() -> tuple[tuple[int, ...], ...]:
    """Prompts as the model reads them: the last token asks for the answer."""
    return tuple((*tokens, END) for tokens in random_prompts([n - 1 for n in LENGTHS]))


def word_scores(model: SplitModel, prompt: tuple[int, ...]) -> list[float]:
    """Scores of the label words after one prompt, by the peft model's whole vocabulary head."""
    with torch.no_grad():
        logits = model.module(input_ids=torch.tensor([prompt])).logits
    assert logits.shape == (1, len(prompt), VOCABULARY)
    return [logits[0, -1, word].item() for word in WORDS]


def word_loss(scores: list[float], label: int) -> float:
    """Cross-entropy over the label words."""
    return math.log(sum(math.exp(score) for score in scores)) - scores[label]
