"""SQuAD 1.1's exact match and F1, by the rules of its official scorer.

Both compare normalised texts: lower case, without ASCII punctuation, without the articles a, an and
the, with single spaces. A question's score is the best over its accepted answers, a set's score the
mean over its questions.

>>> scores(["The Denver Broncos!"], [["Denver Broncos", "Broncos"]])
{'em': 1.0, 'f1': 1.0, 'examples': 1}
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def scores(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return mean exact match and F1 in [0, 1] over all questions."""
    pairs = list(zip(predictions, golds, strict=True))
    return {
        "em": sum(exact_match(prediction, accepted) for prediction, accepted in pairs) / len(pairs),
        "f1": sum(f1(prediction, accepted) for prediction, accepted in pairs) / len(pairs),
        "examples": len(pairs),
    }


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1 if the prediction equals one of the answers after normalisation."""
    return float(any(normalise(prediction) == normalise(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the best overlap of words with one of the answers, counted with repetition.

    Without a common word it is 0, also if both sides are empty after normalisation, where the exact
    match is 1: these are the official rules of version 1.1.
    """
    return max(_overlap(normalise(prediction).split(), normalise(gold).split()) for gold in golds)


def normalise(text: str) -> str:
    """Normalise: lower case, no ASCII punctuation, no English articles, single spaces.

    Punctuation goes before articles: "a-b" becomes "ab", and "A." becomes nothing.
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _overlap(predicted: list[str], gold: list[str]) -> float:
    """Return 2PR / (P + R), which is twice the common words over all words."""
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0
