"""ROUGE-L of written answers, by the package ``rouge-score`` (extra ``rouge``)."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from hofl.core.errors import HoflError


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
