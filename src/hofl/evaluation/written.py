"""Greedy answers to fixed questions."""

from collections.abc import Sequence
from typing import Any

from hofl.data.encoded import Question
from hofl.evaluation.scores import Progress
from hofl.models.generation import greedy
from hofl.models.split import SplitModel


def written(
    model: SplitModel,
    questions: Sequence[Question],
    tokenizer: Any,
    batch_size: int,
    progress: Progress | None = None,
) -> list[str]:
    """Return the model's greedy answers, in the order of the questions."""
    answers = [""] * len(questions)
    # Longest first: memory runs out at once or not at all, and a batch is padded little.
    order = sorted(range(len(questions)), key=lambda n: -len(questions[n].tokens))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        asked = [questions[n] for n in batch]
        tokens = greedy(
            model,
            [question.tokens for question in asked],
            asked[0].stops,
            max(question.max_new_tokens for question in asked),
        )
        for n, ids in zip(batch, tokens, strict=True):
            kept = ids[: questions[n].max_new_tokens]
            answers[n] = tokenizer.decode(kept, skip_special_tokens=True).strip()
        if progress is not None:
            progress(start + len(batch), len(order))
    return answers
