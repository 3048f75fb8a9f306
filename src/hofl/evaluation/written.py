"""Greedy answers to fixed questions, and their ROUGE-L by ``rouge-score`` (extra ``rouge``)."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from hofl.core.errors import HoflError
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
    """Return the model's greedy answers, in the order of the questions.

    An answer ends where the model's window does.
    """
    answers, done = [""] * len(questions), 0
    window = int(getattr(model.config, "max_position_embeddings", 2**30))
    # The last token of an answer is written, not read.
    limits = [min(q.max_new_tokens, window + 1 - len(q.tokens)) for q in questions]
    for batch in _batches(questions, limits, batch_size):
        asked = [questions[n] for n in batch]
        tokens = greedy(
            model,
            [question.tokens for question in asked],
            asked[0].stops,
            max(limits[n] for n in batch),
        )
        for n, ids in zip(batch, tokens, strict=True):
            kept = ids[: limits[n]]
            answers[n] = tokenizer.decode(kept, skip_special_tokens=True).strip()
        done += len(batch)
        if progress is not None:
            progress(done, len(questions))
    return answers


def scorer() -> Any:
    """Return the package's scorer, without stemming.

    Raises:
        HoflError: the package is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise HoflError(
            "evaluation.rouge needs the package rouge-score: pip install 'hofl[rouge]'."
        ) from None
    return RougeScorer(["rougeL"])


def rouge_l(answers: Sequence[str], expected: Sequence[str]) -> float:
    """Return the mean ROUGE-L: the F-measure of the longest common subsequence of words.

    Its words are of Latin letters and digits: other scripts score 0.
    """
    rouge = scorer()
    pairs = zip(expected, answers, strict=True)
    return fmean(rouge.score(right, answer)["rougeL"].fmeasure for right, answer in pairs)


def _batches(
    questions: Sequence[Question], limits: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Yield questions to be answered together, of which none is continued beyond the window."""
    # Longest first: memory runs out at once or not at all, and a batch is padded little.
    order = sorted(range(len(questions)), key=lambda n: -len(questions[n].tokens))
    whole = [n for n in order if limits[n] == questions[n].max_new_tokens]
    yield from ([n] for n in order if limits[n] < questions[n].max_new_tokens)
    for start in range(0, len(whole), batch_size):
        yield whole[start : start + batch_size]
